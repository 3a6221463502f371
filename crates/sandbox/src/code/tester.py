"""Runs one test against a program in another process of the sandbox.

The program is in a process of its own that has neither the test nor the file descriptor of the verdict: values cross
between the two as data, and are compared here.
"""

import builtins
import ctypes
import json
import os
import sys
import types

CHANNEL_IN, CHANNEL_OUT = 4, 5
PLAIN = (type(None), bool, int, float, str)
SERIES = {"l": list, "t": tuple, "s": set, "f": frozenset}


class Remote:
    """A function, class or object of the program."""

    def __init__(self, channel, number):
        self.__dict__["_remote"] = (channel, number)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        channel, number = self._remote
        return channel.ask("get", number, name)

    def __setattr__(self, name, value):
        channel, number = self._remote
        channel.ask("set", number, name, encode(value))

    def __call__(self, *arguments, **named):
        channel, number = self._remote
        return channel.ask("call", number, [encode(a) for a in arguments], encode(named), given=arguments)

    def __getitem__(self, key):
        return self._special("__getitem__", key)

    def __setitem__(self, key, value):
        return self._special("__setitem__", key, value)

    def __len__(self):
        return self._special("__len__")

    def __iter__(self):
        return iter(self._special("__iter__"))

    def __contains__(self, value):
        return self._special("__contains__", value)

    def __str__(self):
        return self._special("__str__")

    def _special(self, name, *arguments):
        channel, number = self._remote
        return channel.ask("special", number, name, [encode(a) for a in arguments])


def encode(value, objects=None):
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is bytes:
        return ["b", value.hex()]
    if kind is dict:
        return ["d", [[encode(k, objects), encode(v, objects)] for k, v in value.items()]]
    for letter, series in SERIES.items():
        if kind is series:
            return [letter, [encode(v, objects) for v in value]]
    if kind is Remote:
        return ["h", value._remote[1]]
    if objects is None:
        raise TypeError(f"a test cannot pass a {kind.__name__} to the program")
    if kind.__name__ in ("generator", "map", "filter", "zip", "range", "list_iterator"):
        return ["l", [encode(v, objects) for v in value]]
    objects.append(value)
    return ["h", len(objects) - 1]


def decode(data, resolve):
    if not isinstance(data, list):
        return data
    letter, content = data
    if letter == "b":
        return bytes.fromhex(content)
    if letter == "d":
        return {decode(k, resolve): decode(v, resolve) for k, v in content}
    if letter == "h":
        return resolve(content)
    return SERIES[letter](decode(v, resolve) for v in content)


class Channel:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def read(self):
        line = self.reader.readline()
        if not line:
            raise RuntimeError("the program has ended")
        return json.loads(line)

    def write(self, message):
        self.writer.write(json.dumps(message) + "\n")
        self.writer.flush()

    def ask(self, *message, given=()):
        self.write(message)
        answer = self.read()
        resolve = lambda number: Remote(self, number)
        for value, after in zip(given, answer.get("arguments", ())):
            update(value, decode(after, resolve))
        if "error" in answer:
            name, text = answer["error"]
            kind = getattr(builtins, str(name), None)
            is_error = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if is_error else type(str(name), (Exception,), {}))(text)
        return decode(answer["value"], resolve)


def update(value, after):
    """Repeats a change of an argument."""
    if type(value) is not type(after):
        return
    if type(value) is list:
        value[:] = after
    elif type(value) in (dict, set):
        value.clear()
        value.update(after)


def serve(path):
    """The process of the program: loads it and answers."""
    channel = Channel(os.fdopen(CHANNEL_IN), os.fdopen(CHANNEL_OUT, "w"))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    objects = []
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
    except BaseException as error:
        channel.write({"error": [type(error).__name__, str(error)]})
        return
    names = {k: encode(v, objects) for k, v in vars(module).items() if not k.startswith("__")}
    channel.write({"value": ["d", [[k, v] for k, v in names.items()]]})
    resolve = objects.__getitem__
    while True:
        kind, number, *rest = channel.read()
        answer = {}
        try:
            target = objects[number]
            if kind == "get":
                value = getattr(target, rest[0])
            elif kind == "set":
                value = setattr(target, rest[0], decode(rest[1], resolve))
            elif kind == "special":
                if rest[0] == "__iter__":
                    value = list(target)
                else:
                    value = getattr(target, rest[0])(*(decode(a, resolve) for a in rest[1]))
            else:
                arguments = [decode(a, resolve) for a in rest[0]]
                value = target(*arguments, **decode(rest[1], resolve))
                answer["arguments"] = [encode(a, objects) for a in arguments]
            answer["value"] = encode(value, objects)
        except BaseException as error:
            answer["error"] = [type(error).__name__, str(error)]
        channel.write(answer)


def start():
    """Starts the process of the program, without the verdict's file descriptor."""
    # Nothing of this process can be read, not even by its children.
    if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) != 0:
        raise RuntimeError("prctl")
    to_program, from_tester = os.pipe()
    to_tester, from_program = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, n) for n in (0, 1, 2)]
    # Out of the way of the numbers that the program has.
    high_in, high_out = os.dup2(to_program, 20, False) or 20, os.dup2(from_program, 21, False) or 21
    actions += [(os.POSIX_SPAWN_DUP2, high_in, CHANNEL_IN), (os.POSIX_SPAWN_DUP2, high_out, CHANNEL_OUT)]
    os.set_inheritable(3, False)
    arguments = [sys.executable, "-I", "-S", __file__, "program"]
    os.posix_spawn(sys.executable, arguments, dict(os.environ), file_actions=actions)
    for used in (to_program, from_program, high_in, high_out, null):
        os.close(used)
    return Channel(os.fdopen(to_tester), os.fdopen(from_tester, "w"))


class Raises:
    def __init__(self, kinds, match=None):
        self.kinds, self.match = kinds, match

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        import re

        assert kind is not None, "nothing was raised"
        self.value = value
        return issubclass(kind, self.kinds) and (self.match is None or bool(re.search(self.match, str(value))))


class Approx:
    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, found):
        if isinstance(self.expected, (list, tuple)):
            same = type(found) is type(self.expected) and len(found) == len(self.expected)
            return same and all(Approx(e, self.rel, self.abs) == f for e, f in zip(self.expected, found))
        if type(found) not in (int, float):
            return False
        return found == self.expected or abs(found - self.expected) <= max(self.rel * abs(self.expected), self.abs)


def parametrize(names, rows):
    names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function):
        def test():
            for row in rows:
                row = row if len(names) > 1 else (row,)
                function(**dict(zip(names, row)))

        return test

    return decorate


def pytest_module():
    module = types.ModuleType("pytest")
    module.raises, module.approx = Raises, Approx
    module.mark = types.SimpleNamespace(parametrize=parametrize)
    return module


def plain(value):
    """A result as JSON, in which series are lists; raises an error for others."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in (list, tuple):
        return [plain(v) for v in value]
    if kind in (set, frozenset):
        return [plain(v) for v in sorted(value)]
    if kind is dict:
        return {k if type(k) is str else json.dumps(plain(k)): plain(v) for k, v in value.items()}
    raise TypeError(f"a {kind.__name__} is not data")


def run(test):
    channel = start()
    answer = channel.read()
    if "error" in answer:
        raise RuntimeError(": ".join(answer["error"]))
    names = decode(answer["value"], lambda number: Remote(channel, number))
    solution = types.ModuleType("solution")
    vars(solution).update(names)
    sys.modules["solution"] = solution
    sys.modules["pytest"] = pytest_module()
    if "call" in test:
        function = names[test["call"]] if test["call"] in names else getattr(names["Solution"](), test["call"])
        return plain(function(*test["arguments"]))
    scope = dict(names, __name__="tests")
    exec(compile(test["code"], "tests", "exec"), scope)
    if test["is_pytest"]:
        found = [v for k, v in scope.items() if k.startswith("test") and type(v) is types.FunctionType]
        assert found, "no function that begins with test"
        for function in found:
            function()
    return None


def main():
    test = json.loads(sys.stdin.buffer.read())
    try:
        verdict = {"value": run(test)}
    except BaseException as error:
        verdict = {"error": f"{type(error).__name__}: {error}"[:500]}
    verdict["nonce"] = test["nonce"]
    with os.fdopen(3, "w") as report:
        json.dump(verdict, report)
    os._exit(0)


if sys.argv[1:] == ["program"]:
    serve("solution.py")
else:
    main()
