//! The pages of `docs/algorithms` agree with the code.
//!
//! Tables that repeat information from the code are compared with it. `RLOOM_UPDATE_PAGES=1 cargo test -p rloom-algo
//! pages` regenerates those rows: the tables of settings and the index.

use std::{fmt::Write as _, fs, path::PathBuf, sync::Mutex};

use rloom_algo::{Algorithm, AlgorithmSettings, DataKind, Method, RewardModelSpec};

use crate::every_key::flat;

/// Sections of a page, in order.
const SECTIONS: [&str; 8] = [
    "Sampling",
    "Advantage",
    "Loss",
    "Normaliser",
    "Settings",
    "Stale samples",
    "Example",
    "Other implementations",
];
const SETTINGS_HEAD: &str = "| key | default | meaning |";
const STALE_HEAD: &str = "| key | at `max_staleness` > 0 |";
const INDEX_HEAD: &str = "| method | what it is | advantage | loss | mean over |";
const BROUGHT_HEAD: &str = "| method | set | keys that take effect |";

fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../docs/algorithms", file].iter().collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|e| panic!("docs/algorithms/{file}: {e}"))
}

/// The lines under a page's `## title`.
fn section<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    let lines = page.lines().skip_while(|line| line.strip_prefix("## ") != Some(title)).skip(1);
    lines.take_while(|line| !line.starts_with("## ")).collect()
}

/// The rows of the table with the header `head`, without header and rule.
fn table<'a>(page: &'a str, head: &str) -> Vec<&'a str> {
    let rows = page.lines().skip_while(|line| *line != head).skip(2);
    rows.take_while(|line| line.starts_with('|')).collect()
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

fn code(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// Replaces the rows of the table `head` in a page. The lock serialises tests that update the same page.
fn update(file: &str, head: &str, rows: &[String]) {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap();
    fs::write(path(file), with_rows(&read(file), head, rows)).unwrap();
}

/// The page with the rows of the table `head` replaced.
fn with_rows(page: &str, head: &str, rows: &[String]) -> String {
    let old = table(page, head);
    let mut out = String::new();
    let mut written = false;
    for line in page.lines() {
        if old.contains(&line) {
            continue;
        }
        out.push_str(line);
        out.push('\n');
        if line.starts_with("| ---") && !written && out.contains(head) {
            for row in rows {
                writeln!(out, "{row}").unwrap();
            }
            written = true;
        }
    }
    out
}

/// The expected rows of a method's table of settings.
fn settings(method: Method) -> Vec<String> {
    let row = |key: rloom_algo::KeyReference| {
        let default = key.default.map_or("(none)".to_owned(), |value| format!("`{value}`"));
        format!("| `{}` | {default} | {} |", key.key, key.doc)
    };
    method.keys().unwrap().into_iter().map(row).collect()
}

/// The index's row of a method.
fn index_row(method: Method) -> String {
    let algorithm = Algorithm::preset(method).unwrap();
    let settings = algorithm.to_settings();
    let advantage =
        settings.advantage.and_then(|a| a.kind).map_or("none".to_owned(), |a| format!("`{}`", a.name()));
    let of_preference = settings.preference.and_then(|p| p.kind).map(rloom_algo::PreferenceKind::name);
    let of_teacher = settings.distillation.and_then(|d| d.kind).map(rloom_algo::DistillationKind::name);
    let loss = settings.loss.and_then(|l| l.kind).map(rloom_algo::LossKind::name);
    let loss = loss.or(of_preference).or(of_teacher);
    let otherwise = match algorithm.reward_model {
        Some(RewardModelSpec::Sequence { .. }) => "preference likelihood",
        Some(RewardModelSpec::Process) => "cross-entropy",
        None => "likelihood",
    };
    let loss = loss.map_or(otherwise.to_owned(), |name| format!("`{name}`"));
    let data = algorithm.method.data().filter(|_| settings.loss_aggregation.is_none());
    let over = match (settings.loss_aggregation, data) {
        (Some(aggregation), _) => format!("`{}`", aggregation.name()),
        (None, Some(DataKind::Steps)) => "steps".to_owned(),
        (None, Some(DataKind::Pairs)) => "pairs".to_owned(),
        (None, Some(_)) => "completions".to_owned(),
        (None, None) if algorithm.samples_pairs() => "pairs".to_owned(),
        (None, None) => "sequences".to_owned(),
    };
    let summary = method.info().summary;
    format!("| [{method}]({method}.md) | {summary} | {advantage} | {loss} | {over} |")
}

fn index() -> Vec<String> {
    Method::ALL.iter().map(|&m| index_row(m)).collect()
}

fn updates() -> bool {
    std::env::var_os("RLOOM_UPDATE_PAGES").is_some()
}

/// Fails with the expected and the actual rows if they differ.
fn same_rows(file: &str, there: &[&str], wanted: &[String]) {
    let missing: Vec<_> = wanted.iter().filter(|row| !there.contains(&row.as_str())).cloned().collect();
    let wrong: Vec<_> = there.iter().filter(|row| !wanted.iter().any(|w| w == **row)).copied().collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/algorithms/{file} disagrees with the code. It should have\n{}\nand has\n{}\n\
         hint: RLOOM_UPDATE_PAGES=1 cargo test -p rloom-algo pages",
        missing.join("\n"),
        wrong.join("\n")
    );
    assert_eq!(there, wanted, "docs/algorithms/{file}: the rows are those of the code, but not in its order");
}

#[test]
fn pages_and_methods_match() {
    let mut wanted: Vec<String> = Method::ALL.iter().map(|m| format!("{m}.md")).collect();
    wanted.push("README.md".to_owned());
    let entries = fs::read_dir(path("")).unwrap();
    let mut there: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().expect("a name in UTF-8")).collect();
    wanted.sort();
    there.sort();
    assert_eq!(there, wanted);
    for &method in Method::ALL {
        assert_eq!(method.page(), read(&format!("{method}.md")), "{method} has another method's page");
    }
}

#[test]
fn sections_are_complete_and_in_order() {
    for &method in Method::ALL {
        let page = method.page();
        let titles: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(titles, SECTIONS, "{method}");
        assert_eq!(page.lines().next(), Some(format!("# {method}").as_str()));
        for title in SECTIONS {
            let text = section(page, title).iter().any(|line| !line.is_empty());
            assert!(text, "{method}: nothing under {title:?}");
        }
        for title in ["Advantage", "Loss", "Normaliser"] {
            let equation = section(page, title).contains(&"```text");
            assert!(equation || method.is_supervised(), "{method}: no equation under {title:?}");
        }
        assert!(section(page, "Other implementations").iter().any(|line| line.starts_with("- ")), "{method}");
    }
}

#[test]
fn papers_have_an_arxiv_number() {
    for &method in Method::ALL {
        let line = method.page().lines().nth(4).unwrap_or_default();
        let number =
            line.strip_prefix("Paper: ").and_then(|l| l.strip_suffix('.')).and_then(|l| l.rsplit_once(' '));
        let (month, paper) = number.and_then(|(_, n)| n.split_once('.')).unwrap_or_default();
        let digits = |s: &str, n| s.len() == n && s.bytes().all(|b| b.is_ascii_digit());
        assert!(line.contains(", arXiv ") && digits(month, 4) && digits(paper, 5), "{method}: {line}");
    }
}

#[test]
fn tables_of_settings_match_the_code() {
    for &method in Method::ALL {
        let (file, wanted) = (format!("{method}.md"), settings(method));
        if updates() {
            update(&file, SETTINGS_HEAD, &wanted);
            continue;
        }
        let there = table(method.page(), SETTINGS_HEAD);
        same_rows(&file, &there, &wanted);
        for row in there {
            let cells = cells(row);
            assert!(cells.len() == 3, "docs/algorithms/{file}: a column too many: {row}");
        }
    }
}

/// Rows of a method's table of keys with other values if samples may be stale.
fn stale(method: Method) -> Vec<String> {
    let preset = flat(&Algorithm::preset(method).unwrap().to_settings());
    let stale = Algorithm::resolve(method, &AlgorithmSettings::default(), 1).unwrap();
    let stale = flat(&stale.to_settings());
    assert!(preset.iter().all(|(key, _)| stale.iter().any(|(k, _)| k == key)), "{method}: a key is gone");
    let changed = stale.into_iter().filter(|read| !preset.contains(read));
    changed.map(|(key, value)| format!("| `{key}` | `{value}` |")).collect()
}

#[test]
fn tables_of_stale_settings_match_the_code() {
    for &method in Method::ALL {
        let (file, wanted) = (format!("{method}.md"), stale(method));
        if updates() {
            update(&file, STALE_HEAD, &wanted);
            continue;
        }
        same_rows(&file, &table(method.page(), STALE_HEAD), &wanted);
        assert_eq!(method.page().contains(STALE_HEAD), !wanted.is_empty(), "{file}: an empty table");
    }
}

#[test]
fn the_index_lists_every_method() {
    let (readme, wanted) = (read("README.md"), index());
    if updates() {
        update("README.md", INDEX_HEAD, &wanted);
        return;
    }
    same_rows("README.md", &table(&readme, INDEX_HEAD), &wanted);
}

/// `key = value` of each piece of code in a cell.
fn assignments(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Keys that take effect with others: exactly those of the resolved stage that differ from the preset.
#[test]
fn keys_that_come_with_others() {
    let readme = read("README.md");
    let rows = table(&readme, BROUGHT_HEAD);
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let cells = cells(row);
        let method: Method = code(cells[0]).parse().unwrap();
        let set = assignments(cells[1]);
        let settings = toml::from_str(&set.join("\n")).unwrap_or_else(|e| panic!("{row}: {e}"));
        let resolved = Algorithm::resolve(method, &settings, 0).unwrap_or_else(|e| panic!("{row}: {e}"));
        let preset = flat(&Algorithm::preset(method).unwrap().to_settings());
        let asked = settings.keys();
        let brought: Vec<String> = flat(&resolved.to_settings())
            .into_iter()
            .filter(|read| !asked.contains(&read.0) && !preset.contains(read))
            .map(|(key, value)| format!("{key} = {value}"))
            .collect();
        assert_eq!(assignments(cells[2]), brought, "docs/algorithms/README.md: {row}");
    }
}
