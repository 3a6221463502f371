"""An agent with a calculator: it asks the policy for a product and computes what the policy wants to have computed.

Any program that speaks OpenAI's or Anthropic's API is an agent. This one needs no packages, so that it starts quickly.
"""

import http.client
import json
import os
import re
from urllib.parse import urlsplit


def post(url, body):
    """Sends JSON and returns the answer's."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    connection.request("POST", parts.path, json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    if response.status >= 300:
        raise SystemExit(f"{url.rsplit('/', 1)[-1]}: status {response.status}: {text}")
    return json.loads(text) if text else None


def ask(messages):
    """What the policy answers to a conversation."""
    answer = post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", {"model": "policy", "messages": messages})
    return answer["choices"][0]["message"]["content"] or ""


task = json.loads(os.environ["RLOOM_TASK"])
messages = [{"role": "user", "content": task["prompt"]}]
answer = ask(messages)
call = re.fullmatch(r"<calculator>(\d{1,6})\*(\d{1,6})</calculator>", answer.strip())
if call:
    product = int(call[1]) * int(call[2])
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"<result>{product}</result>"},
    ]
    answer = ask(messages)
given = answer.rpartition("####")[2].strip()
post(os.environ["RLOOM_REWARD_URL"], {"value": 1.0 if given == task["answer"] else 0.0})
