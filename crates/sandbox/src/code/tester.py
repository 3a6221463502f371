"""Runs one test against a program in another process of the sandbox.

The program is in a process of its own that has neither the test nor the file descriptor of the verdict: values cross
between the two as data, and are compared here. Whatever the program's process writes is an answer of its functions at most.
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
# Dictionaries of the standard library, which equal plain ones.
TABLES = ("collections.Counter", "collections.OrderedDict", "collections.defaultdict")
ALIASES = {"np": "numpy", "pd": "pandas"}


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
        channel.ask("set", number, name, channel.encode(value))

    def __call__(self, *arguments, **named):
        channel, number = self._remote
        encoded = [channel.encode(a) for a in arguments]
        return channel.ask("call", number, encoded, channel.encode(named), given=arguments)

    def __getitem__(self, key):
        return self._special("__getitem__", key)

    def __setitem__(self, key, value):
        return self._special("__setitem__", key, value)

    def __len__(self):
        return self._special("__len__")

    def __bool__(self):
        return self._special("bool")

    def __iter__(self):
        return self._special("iter")

    def __contains__(self, value):
        return self._special("__contains__", value)

    def __str__(self):
        return self._special("__str__")

    def __repr__(self):
        return self._special("__repr__")

    def _special(self, name, *arguments):
        channel, number = self._remote
        return channel.ask("special", number, name, [channel.encode(a) for a in arguments])


class RemoteIterator(Remote):
    """A generator or another iterator of the program."""

    def __iter__(self):
        return self

    def __next__(self):
        found = self._special("next")
        if not found:
            raise StopIteration
        return found[0]


class Callback:
    """A function of the test, in the process of the program."""

    def __init__(self, channel, number):
        self._channel, self._number = channel, number

    def __call__(self, *arguments, **named):
        channel = self._channel
        channel.write({"callback": self._number, "arguments": [channel.encode(list(arguments)), channel.encode(named)]})
        answer = channel.read()
        if "error" in answer:
            raise channel.error(*answer["error"])
        return channel.decode(answer["value"])


class Channel:
    """The other process: objects of this one have numbers there."""

    def __init__(self, reader, writer, is_program):
        self.reader, self.writer, self.is_program = reader, writer, is_program
        self.objects = []
        self.exceptions = {}

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
        while "callback" in answer:
            self.write(self.answer_callback(answer))
            answer = self.read()
        for value, after in zip(given, answer.get("arguments", ())):
            update(value, self.decode(after))
        if "error" in answer:
            raise self.error(*answer["error"])
        return self.decode(answer["value"])

    def answer_callback(self, message):
        try:
            arguments, named = (self.decode(part) for part in message["arguments"])
            return {"value": self.encode(self.objects[message["callback"]](*arguments, **named))}
        except Exception as error:
            return {"error": describe(error)}

    def number(self, value):
        self.objects.append(value)
        return len(self.objects) - 1

    def encode(self, value):
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is bytes:
            return ["b", value.hex()]
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind is dict or name in TABLES:
            return ["d", [[self.encode(k), self.encode(v)] for k, v in value.items()]]
        for letter, series in SERIES.items():
            if kind is series:
                return [letter, [self.encode(v) for v in value]]
        if kind is complex:
            return ["z", [value.real, value.imag]]
        if kind is range:
            return ["r", [value.start, value.stop, value.step]]
        if name == "collections.deque":
            return ["q", [[self.encode(v) for v in value], value.maxlen]]
        if name in ("fractions.Fraction", "decimal.Decimal"):
            return ["n", [name, str(value)]]
        if name == "numpy.ndarray":
            return ["a", [str(value.dtype), self.encode(value.tolist())]]
        if kind.__module__ == "numpy" and hasattr(value, "item"):
            return self.encode(value.item())
        return self.encode_object(value)

    def encode_object(self, value):
        if isinstance(value, (Remote, Callback)):
            return ["own", value._remote[1] if isinstance(value, Remote) else value._number]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["e", lineage(value)]
        if self.is_program:
            is_iterator = hasattr(value, "__next__") and hasattr(value, "__iter__")
            return ["i" if is_iterator else "h", self.number(value)]
        if callable(value):
            return ["c", self.number(value)]
        raise TypeError(f"a test cannot pass a {type(value).__name__} to the program")

    def decode(self, data):
        if not isinstance(data, list):
            return data
        letter, content = data
        if letter in SERIES:
            return SERIES[letter](self.decode(v) for v in content)
        if letter == "b":
            return bytes.fromhex(content)
        if letter == "d":
            return {self.decode(k): self.decode(v) for k, v in content}
        if letter == "z":
            return complex(*content)
        if letter == "r":
            return range(*content)
        if letter == "q":
            import collections

            return collections.deque((self.decode(v) for v in content[0]), content[1])
        if letter == "n":
            import decimal
            import fractions

            kinds = {"fractions.Fraction": fractions.Fraction, "decimal.Decimal": decimal.Decimal}
            return kinds[content[0]](content[1])
        if letter == "a":
            import numpy

            return numpy.array(self.decode(content[1]), dtype=content[0])
        return self.decode_object(letter, content)

    def decode_object(self, letter, content):
        if letter == "own":
            return self.objects[content]
        if letter == "e":
            return self.exception(content)
        if self.is_program:
            return {"c": Callback}[letter](self, content)
        return {"h": Remote, "i": RemoteIterator}[letter](self, content)

    def exception(self, names):
        """The class of an exception: one of Python's, or one that stands for a class of the program."""
        name, *bases = names
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
        if name not in self.exceptions:
            base = self.exception(bases) if bases else Exception
            self.exceptions[name] = type(str(name), (base,), {})
        return self.exceptions[name]

    def error(self, names, text):
        kind = self.exception(names)
        error = kind.__new__(kind)
        error.args = (text,)
        return error


def lineage(kind):
    """Names of a class of exceptions and of those that it derives from, up to one of Python's."""
    names = []
    for base in kind.__mro__:
        names.append(base.__name__)
        if base.__module__ == "builtins":
            break
    return names


def describe(error):
    """An exception as data."""
    return [lineage(type(error)), str(error)]


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
    channel = Channel(os.fdopen(CHANNEL_IN), os.fdopen(CHANNEL_OUT, "w"), True)
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
    except BaseException as error:
        channel.write({"error": describe(error)})
        return
    names = {k: channel.encode(v) for k, v in vars(module).items() if not k.startswith("__")}
    channel.write({"value": ["d", [[k, v] for k, v in names.items()]]})
    while True:
        message = channel.read()
        answer = {}
        try:
            answer["value"] = channel.encode(perform(channel, answer, *message))
        except BaseException as error:
            answer["error"] = describe(error)
        channel.write(answer)


def perform(channel, answer, kind, number, *rest):
    """Does what the test asks for with an object of the program."""
    target = channel.objects[number]
    if kind == "get":
        return getattr(target, rest[0])
    if kind == "set":
        return setattr(target, rest[0], channel.decode(rest[1]))
    if kind == "special":
        name, arguments = rest[0], [channel.decode(a) for a in rest[1]]
        if name == "bool":
            return bool(target)
        if name == "iter":
            return iter(target)
        if name == "next":
            for value in target:
                return [value]
            return []
        if not hasattr(target, name):
            raise TypeError(f"a {type(target).__name__} has no {name}")
        return getattr(target, name)(*arguments)
    arguments = [channel.decode(a) for a in rest[0]]
    try:
        return target(*arguments, **channel.decode(rest[1]))
    finally:
        answer["arguments"] = [channel.encode(a) for a in arguments]


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
    arguments = [sys.executable, "-I", __file__, "program"]
    os.posix_spawn(sys.executable, arguments, dict(os.environ), file_actions=actions)
    for used in (to_program, from_program, high_in, high_out, null):
        os.close(used)
    return Channel(os.fdopen(to_tester), os.fdopen(from_tester, "w"), False)


class Raises:
    def __init__(self, kinds, match=None):
        self.kinds, self.match = kinds, match

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        import re

        assert kind is not None, "nothing was raised"
        self.type, self.value = kind, value
        return issubclass(kind, self.kinds) and (self.match is None or bool(re.search(self.match, str(value))))


class Approx:
    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected, self.rel, self.abs = expected, rel, abs

    def _part(self, expected):
        return Approx(expected, self.rel, self.abs)

    def __eq__(self, found):
        expected = self.expected
        if isinstance(expected, (list, tuple)):
            same = type(found) is type(expected) and len(found) == len(expected)
            return same and all(self._part(e) == f for e, f in zip(expected, found))
        if isinstance(expected, dict):
            same = type(found) is dict and found.keys() == expected.keys()
            return same and all(self._part(e) == found[key] for key, e in expected.items())
        if type(found) not in (int, float):
            return False
        return found == expected or abs(found - expected) <= max(self.rel * abs(expected), self.abs)


def parametrize(names, rows):
    names = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function):
        def test(*own, **given):
            for row in rows:
                row = row if len(names) > 1 else (row,)
                function(*own, **given, **dict(zip(names, row)))

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
    if kind in (list, tuple, range, RemoteIterator) or kind.__name__ == "deque":
        return [plain(v) for v in value]
    if kind in (set, frozenset):
        return [plain(v) for v in sorted(value)]
    if kind is dict:
        return {k if type(k) is str else json.dumps(plain(k)): plain(v) for k, v in value.items()}
    if kind.__name__ == "ndarray":
        return value.tolist()
    raise TypeError(f"a {kind.__name__} is not data")


def visible(names, code):
    """The names of the program that a test sees. Those of Python and of its modules are Python's own: with an `abs` of its own,
    a program could pass `assert abs(f(1) - 2) < 1e-6`."""
    import ast

    nodes = list(ast.walk(ast.parse(code)))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    known = {name: value for name, value in names.items() if not hasattr(builtins, name)}
    if len(used) == 1:
        # The test of a function that is named like one of Python's.
        known.update({name: names[name] for name in used if name in names})
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            module = ALIASES.get(node.value.id, node.value.id)
            if module in sys.stdlib_module_names or module in ALIASES.values():
                known[node.value.id] = __import__(module)
    return known


def tests_of(scope):
    """Functions and methods whose names begin with `test`."""
    for name, value in scope.items():
        if type(value) is types.FunctionType and name.startswith("test"):
            yield value
        elif isinstance(value, type) and any(base.__module__ == "unittest.case" for base in value.__mro__):
            yield from unit_tests(value)
        elif type(value) is type and name.startswith("Test"):
            yield from methods(value)


def methods(kind):
    for name in dir(kind):
        if name.startswith("test"):
            own = kind()
            if hasattr(own, "setup_method"):
                own.setup_method()
            yield getattr(own, name)


def unit_tests(case):
    import unittest

    for test in unittest.defaultTestLoader.loadTestsFromTestCase(case):
        # Without a result that collects failures, the first one is raised.
        yield test.debug


def run(test):
    channel = start()
    answer = channel.read()
    if "error" in answer:
        raise channel.error(*answer["error"])
    names = {name: value for name, value in channel.decode(answer["value"]).items() if is_name(name)}
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    sys.modules["pytest"] = pytest_module()
    vars(solution).update(names)
    if "call" in test:
        function = names[test["call"]] if test["call"] in names else getattr(names["Solution"](), test["call"])
        return plain(function(*test["arguments"]))
    known = visible(names, test["code"])
    solution.__all__ = list(known)
    scope = dict(known, __name__="tests")
    exec(compile(test["code"], "tests", "exec"), scope)
    if test["is_pytest"]:
        count = 0
        for function in tests_of(scope):
            function()
            count += 1
        assert count > 0, "no function that begins with test"
    return None


def is_name(name):
    # The program could replace `__builtins__`.
    return type(name) is str and name.isidentifier() and not name.startswith("__")


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
