//! The fields of the stand-ins are those of the packages. Needs `RLOOM_TEST_VLLM`, the Python interpreter of an environment
//! with vLLM, or `RLOOM_TEST_SGLANG`, a folder with the unpacked package `sglang`.

use std::process::Command;

fn check(python: &str, package: &str, folder: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fields/check.py");
    let output = Command::new(python).args([script, package, folder]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{text}");
}

#[test]
fn the_fields_of_vllm_are_those_of_its_package() {
    let Ok(python) = std::env::var("RLOOM_TEST_VLLM") else {
        println!("skipped: set RLOOM_TEST_VLLM to the Python interpreter of an environment with vLLM");
        return;
    };
    let program = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = Command::new(&python).args(["-c", program]).output().unwrap();
    check(&python, "vllm", String::from_utf8(output.stdout).unwrap().trim());
}

#[test]
fn the_fields_of_sglang_are_those_of_its_package() {
    let Ok(folder) = std::env::var("RLOOM_TEST_SGLANG") else {
        println!("skipped: set RLOOM_TEST_SGLANG to a folder with the unpacked package sglang");
        return;
    };
    check("python3", "sglang", &folder);
}
