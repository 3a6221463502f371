//! Real MCP servers: `RLOOM_TEST_PYTHON` is an interpreter with the package `mcp`, `RLOOM_TEST_NODE` a folder whose `node_modules`
//! have `@modelcontextprotocol/server-everything`. Run by `.ci/rewards`.

use std::net::TcpListener;
use std::process::Command;

use rloom_tools::Output;
use serde_json::{Value, json};

use crate::support::{LONG, SHORT, call, python, toolbox};

const SERVER: &str = r#"
import sys, time
try:
    from mcp.server.fastmcp import FastMCP
except ImportError:
    from mcp.server import MCPServer as FastMCP
server = FastMCP("test")

@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

@server.tool()
def boom() -> str:
    "Fails."
    raise ValueError("no")

@server.tool()
def hang() -> str:
    "Hangs."
    time.sleep(1000)

if len(sys.argv) > 1:
    try:
        server.run(transport="streamable-http", port=int(sys.argv[1]))
    except TypeError:
        server.settings.port = int(sys.argv[1])
        server.run(transport="streamable-http")
else:
    server.run()
"#;

fn interpreter() -> String {
    std::env::var("RLOOM_TEST_PYTHON").unwrap()
}

fn check(table: Value) {
    let toolbox = toolbox(table, LONG).unwrap();
    assert_eq!(toolbox.tools()[0].parameters["properties"]["a"]["type"], "integer");
    let tools = toolbox.open();
    assert_eq!(call(&tools, "add", &json!({"a": 2, "b": 3})).unwrap(), Output::ok("5"));
    for (tool, arguments) in [("boom", json!({})), ("add", json!({"a": "x"}))] {
        let output = call(&tools, tool, &arguments).unwrap();
        assert!(output.is_error, "{output:?}");
    }
}

#[test]
#[ignore = "needs the package mcp"]
fn rewards_servers_of_the_python_package() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(folder.path(), "server.py", SERVER);
    check(json!({"kind": "mcp", "command": [interpreter(), file]}));
    let hanging =
        toolbox(json!({"kind": "mcp", "command": [interpreter(), file], "per_episode": true}), SHORT)
            .unwrap();
    assert_eq!(
        call(&hanging.open(), "hang", &json!({})).unwrap(),
        Output::error("the call took longer than 0.5 s")
    );
}

#[test]
#[ignore = "needs the package mcp"]
fn rewards_servers_of_the_python_package_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let file = python(folder.path(), "server.py", SERVER);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new(interpreter()).arg(file).arg(port.to_string()).spawn().unwrap();
    let is_up = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    while !is_up() && server.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let result = std::panic::catch_unwind(|| {
        check(json!({"kind": "mcp", "url": format!("http://127.0.0.1:{port}/mcp")}));
    });
    server.kill().unwrap();
    server.wait().unwrap();
    result.unwrap();
}

#[test]
#[ignore = "needs the npm package server-everything"]
fn rewards_the_server_with_everything() {
    let folder = std::env::var("RLOOM_TEST_NODE").unwrap();
    let program = format!("{folder}/node_modules/.bin/mcp-server-everything");
    let toolbox = toolbox(json!({"kind": "mcp", "command": [program], "tools": ["echo"]}), LONG).unwrap();
    let output = call(&toolbox.open(), "echo", &json!({"message": "hello"})).unwrap();
    assert_eq!(output, Output::ok("Echo: hello"));
}
