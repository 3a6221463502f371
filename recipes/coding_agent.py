"""A coding agent in the shape of mini-SWE-agent: the policy writes shell commands, one a turn, until it writes `submit`.

The task is a tiny repository with a failing test and an issue. The commands are run by a shell in the repository, and what they
write is the policy's next message. After `submit` the functions are called with hidden arguments; the reward is 1 if all results are right.
RLoom starts this program for each episode, in the sandbox (recipes/coding-agent.toml). It needs no packages, so that it starts quickly.
"""

import http.client
import json
import os
import subprocess
from urllib.parse import urlsplit

# Commands of an episode, and characters of an observation.
TURNS, LONGEST = 5, 40
# Processor time of a command in seconds: the code that it runs is the policy's.
SECONDS = 5


def post(url, body):
    """Sends JSON and returns the answer's."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    connection.request("POST", parts.path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if response.status >= 300:
        raise SystemExit(f"{url.rsplit('/', 1)[-1]}: status {response.status}: {text}")
    return json.loads(text) if text else None


def run(*command):
    """Status and output of a command in the repository."""
    limited = ["sh", "-c", f'ulimit -t {SECONDS}; exec "$@"', "sh", *command]
    # Bytecode of a module that changes within a second would be stale. The addresses of the episode are not for commands.
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    where = {"cwd": "repository", "env": environment}
    done = subprocess.run(limited, **where, stdin=null, stdout=pipe, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout[:4096].decode("ascii", "replace")


def observe(command, alphabet):
    """What the policy sees of a command: its output, or its status if it wrote nothing."""
    status, output = run("sh", "-c", command)
    text = output.rstrip("\n") or ("done" if status == 0 else f"status {status}")
    # The model has a character tokenizer.
    return "".join(c if c in alphabet else "?" for c in text[:LONGEST])


task = json.loads(os.environ["RLOOM_TASK"])
fields = task["fields"]
os.mkdir("repository")
for name, content in fields["files"].items():
    with open(f"repository/{name}", "w") as file:
        file.write(content)
messages = [{"role": "user", "content": task["prompt"]}]
base_url = os.environ["OPENAI_BASE_URL"]
for _ in range(TURNS):
    answer = post(f"{base_url}/chat/completions", {"model": "policy", "messages": messages})
    command = answer["choices"][0]["message"]["content"] or ""
    if command == "submit":
        break
    seen = observe(command, fields["alphabet"])
    messages += [{"role": "assistant", "content": command}, {"role": "user", "content": f"\n{seen}\n$ "}]
# The right results are here alone, so that no module can pass by ending the program.
calls = "\n".join(f"import {module}; print({module}.{call})" for module, call, _ in fields["hidden"])
_, output = run("python3", "-S", "-B", "-c", calls)
is_right = output.split() == [result for _, _, result in fields["hidden"]]
post(os.environ["RLOOM_REWARD_URL"], {"value": 1.0 if is_right and command == "submit" else 0.0})
