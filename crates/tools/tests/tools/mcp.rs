//! MCP servers that behave, hang, flood, crash and lie.

use std::path::Path;

use rloom_function::FunctionError;
use rloom_tools::{Output, ToolError};
use serde_json::{Value, json};

use crate::support::{LONG, SHORT, call, python, toolbox};

/// A server over stdin and stdout without libraries.
const SERVER: &str = r#"
import json, sys, time, os
count = 0
def send(message): print(json.dumps(message), flush=True)
print("a greeting that is no message", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    method, number = request.get("method"), request.get("id")
    if method == "initialize":
        send({"jsonrpc": "2.0", "id": number, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}})
    elif method == "tools/list" and "cursor" not in request["params"]:
        names = ["add", "count", "fails", "hangs"]
        tools = [{"name": n, "inputSchema": {"type": "object"}} for n in names]
        send({"jsonrpc": "2.0", "id": number, "result": {"tools": tools, "nextCursor": "2"}})
    elif method == "tools/list":
        tools = [{"name": n, "inputSchema": {"type": "object"}} for n in ["floods", "dies", "lies", "refuses", "errs"]]
        send({"jsonrpc": "2.0", "id": number, "result": {"tools": tools}})
    elif method == "tools/call":
        name, arguments = request["params"]["name"], request["params"]["arguments"]
        result = {"content": [{"type": "text", "text": ""}]}
        if name == "add":
            # The server asks the client something, and tells it something.
            send({"jsonrpc": "2.0", "id": "x", "method": "ping"})
            assert json.loads(sys.stdin.readline()) == {"jsonrpc": "2.0", "id": "x", "result": {}}
            send({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
            send({"jsonrpc": "2.0", "id": 999, "result": {}})
            result["content"] = [{"type": "text", "text": str(arguments["a"] + arguments["b"])}, {"type": "image"}]
        elif name == "count":
            count += 1
            result = {"content": [], "structuredContent": {"count": count}}
        elif name == "fails":
            result = {"content": [{"type": "text", "text": "no"}], "isError": True}
        elif name == "hangs":
            time.sleep(1000)
        elif name == "floods":
            while True: sys.stdout.write("x" * 65536)
        elif name == "dies":
            print("the reason", file=sys.stderr); os._exit(7)
        elif name == "lies":
            result = {"content": "text"}
        elif name == "refuses":
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "bad arguments"}}); continue
        elif name == "errs":
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32603, "message": "no memory"}}); continue
        send({"jsonrpc": "2.0", "id": number, "result": result})
"#;

fn server(folder: &Path, more: &Value) -> Value {
    let file = python(folder, "server.py", SERVER);
    let mut table = json!({"kind": "mcp", "command": ["python3", file], "workers": 1});
    for (key, value) in more.as_object().into_iter().flatten() {
        table[key] = value.clone();
    }
    table
}

#[test]
fn tools_of_a_server_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let toolbox = toolbox(server(folder.path(), &json!({})), LONG).unwrap();
    let names: Vec<&str> = toolbox.tools().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["add", "count", "fails", "hangs", "floods", "dies", "lies", "refuses", "errs"]);
    let tools = toolbox.open();
    assert_eq!(call(&tools, "add", &json!({"a": 2, "b": 3})).unwrap(), Output::ok("5\n[image]"));
    assert_eq!(call(&tools, "fails", &json!({})).unwrap(), Output::error("no"));
    assert_eq!(call(&tools, "refuses", &json!({})).unwrap(), Output::error("bad arguments"));
    // One process serves all episodes.
    assert_eq!(call(&tools, "count", &json!({})).unwrap(), Output::ok("{\"count\":1}"));
    assert_eq!(call(&toolbox.open(), "count", &json!({})).unwrap(), Output::ok("{\"count\":2}"));
}

#[test]
fn failures_of_a_server_are_no_results() {
    let folder = tempfile::tempdir().unwrap();
    let toolbox = toolbox(server(folder.path(), &json!({})), LONG).unwrap();
    let tools = toolbox.open();
    let died = call(&tools, "dies", &json!({})).unwrap_err();
    assert!(matches!(died, ToolError::Function(FunctionError::Ended { .. })), "{died:?}");
    assert!(died.to_string().contains("the reason"), "{died}");
    let lied = call(&tools, "lies", &json!({})).unwrap_err();
    assert!(lied.to_string().contains("answered nonsense to `tools/call`"), "{lied}");
    let flood = call(&tools, "floods", &json!({})).unwrap_err();
    assert!(matches!(flood, ToolError::Function(FunctionError::Malformed { .. })), "{flood:?}");
    let refused = call(&tools, "errs", &json!({})).unwrap_err();
    assert!(refused.to_string().contains("refused `tools/call`: no memory (-32603)"), "{refused}");
    // A new process serves the next call.
    assert_eq!(call(&tools, "count", &json!({})).unwrap(), Output::ok("{\"count\":1}"));
}

#[test]
fn a_call_that_hangs_ends_at_its_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let toolbox = toolbox(server(folder.path(), &json!({})), SHORT).unwrap();
    let tools = toolbox.open();
    assert_eq!(call(&tools, "hangs", &json!({})).unwrap(), Output::error("the call took longer than 0.5 s"));
    assert_eq!(call(&tools, "fails", &json!({})).unwrap(), Output::error("no"));
}

#[test]
fn episodes_have_servers_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let table = server(folder.path(), &json!({"per_episode": true, "tools": ["count", "hangs"]}));
    let toolbox = toolbox(table, SHORT).unwrap();
    assert_eq!(toolbox.tools().len(), 2);
    let (first, second) = (toolbox.open(), toolbox.open());
    for (tools, count) in [(&first, 1), (&second, 1), (&first, 2), (&first, 3)] {
        assert_eq!(call(tools, "count", &json!({})).unwrap(), Output::ok(format!("{{\"count\":{count}}}")));
    }
    // The state of a server that hangs is lost, and the policy is told.
    assert!(call(&first, "hangs", &json!({})).unwrap().is_error);
    let lost = call(&first, "count", &json!({})).unwrap();
    assert_eq!(lost, Output::error("the server was ended, because an earlier call took too long"));
    assert_eq!(call(&second, "count", &json!({})).unwrap(), Output::ok("{\"count\":2}"));
}

#[test]
fn servers_that_cannot_be_used_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let missing = toolbox(json!({"kind": "mcp", "command": ["/no/such/program"]}), LONG).unwrap_err();
    assert!(missing.to_string().contains("cannot start"), "{missing}");
    let unknown = toolbox(server(folder.path(), &json!({"tools": ["add", "other"]})), LONG).unwrap_err();
    assert!(unknown.to_string().contains("has no tool `other`; it has add, count"), "{unknown}");
    let endless = SERVER.replace("and \"cursor\" not in request[\"params\"]", "");
    let file = python(folder.path(), "endless.py", &endless);
    let pages = toolbox(json!({"kind": "mcp", "command": ["python3", file]}), LONG).unwrap_err();
    assert!(pages.to_string().contains("has more than 100 pages of tools"), "{pages}");
    let ended = toolbox(json!({"kind": "mcp", "command": ["true"]}), LONG).unwrap_err();
    assert!(ended.to_string().contains("exited with status 0"), "{ended}");
}
