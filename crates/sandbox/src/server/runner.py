"""Runs one program on a server, as its order says, and writes how it ended to a file that the server returns.

The answer bears the order's nonce: a server that loses output, or has not run this, is told from a program that fails.
"""

import base64
import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time

ORDER = "rloom-order.json"
NOT_DUMPABLE, ADOPT_ORPHANS = 4, 36


def main():
    with open(ORDER) as file:
        order = json.load(file)
    # The program sees neither the nonce nor this process.
    os.unlink(ORDER)
    libc = ctypes.CDLL(None)
    libc.prctl(NOT_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    folder = tempfile.mkdtemp()
    try:
        report = run(order, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report["nonce"] = order["nonce"]
    with open(order["report"], "w") as file:
        json.dump(report, file)


def run(order, folder):
    for file in order["files"]:
        path = os.path.join(folder, file["name"])
        with open(path, "wb") as opened:
            opened.write(base64.b64decode(file["content"]))
        os.chmod(path, 0o700 if file["is_executable"] else 0o600)
    command = find(order["command"], folder)
    if command is None:
        return {"not_started": "it is not installed"}
    started = time.monotonic()
    pid, pipes = start(order, command, folder)
    streams, ending = watch(order, pid, pipes, started + order["wall"])
    wall = time.monotonic() - started
    kill_all()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime
    if ending in ({"signaled": signal.SIGXCPU}, {"signaled": signal.SIGKILL}) and cpu >= order["cpu"]:
        ending = "cpu_limit"
    outputs = [output for name in order["outputs"] for output in read(folder, name)]
    stdout, stderr, report = (base64.b64encode(bytes(stream)).decode() for stream in streams)
    return {
        "ended": {"ending": ending, "stdout": stdout, "stderr": stderr, "report": report},
        "outputs": outputs,
        "wall": wall,
        "cpu": cpu,
    }


def find(command, folder):
    """The command with the path of its program."""
    if "/" in command[0]:
        path = os.path.join(folder, command[0])
        return [path, *command[1:]] if os.path.isfile(path) else None
    path = shutil.which(command[0])
    return None if path is None else [path, *command[1:]]


def start(order, command, folder):
    """Starts the program with its limits. Its number, and this side of its four pipes."""
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    environment.update(order["environment"])
    pairs = [os.pipe() for _ in range(4)]
    theirs = [pairs[0][0], pairs[1][1], pairs[2][1], pairs[3][1]]
    ours = [pairs[0][1], pairs[1][0], pairs[2][0], pairs[3][0]]
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir(folder)
            high = [os.dup2(pipe, 40 + n) for n, pipe in enumerate(theirs)]
            for number, pipe in enumerate(high):
                os.dup2(pipe, number)
            os.closerange(3 + order["reports"], 256)
            seconds = max(1, int(order["cpu"] + 0.999))
            limit(resource.RLIMIT_CPU, seconds, 1)
            limit(resource.RLIMIT_DATA, order["memory"])
            limit(resource.RLIMIT_FSIZE, order["disk"])
            limit(resource.RLIMIT_CORE, 0)
            os.execve(command[0], command, environment)
        finally:
            os._exit(127)
    for pipe in theirs:
        os.close(pipe)
    return pid, ours


def limit(kind, value, more=0):
    hard = resource.getrlimit(kind)[1]
    most = value + more if hard == resource.RLIM_INFINITY else min(value + more, hard)
    resource.setrlimit(kind, (min(value, most), most))


def watch(order, pid, pipes, deadline):
    """Feeds and reads the program until it ends or exceeds a limit: what it wrote, and its end."""
    left = base64.b64decode(order["stdin"])
    streams = [bytearray(), bytearray(), bytearray()]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate(pipes):
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ if number else selectors.EVENT_WRITE, number)
        while True:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            for key, _ in selector.select(0 if ended else 0.01) if selector.get_map() else []:
                if key.data == 0:
                    left = feed(key.fd, left)
                    is_done = left is None
                else:
                    is_done = drain(key.fd, streams[key.data - 1])
                if is_done:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            if any(len(stream) > order["output"] for stream in streams):
                return [stream[: order["output"]] for stream in streams], "output_limit"
            if ended and not any(key.data for key, _ in selector.select(0)):
                code = ended.si_status
                return streams, {"exited" if ended.si_code == os.CLD_EXITED else "signaled": code}
            if time.monotonic() >= deadline:
                return streams, "timed_out"
            if not ended and not selector.get_map():
                time.sleep(0.005)


def feed(pipe, left):
    """Writes what the program has room for; what is left, and `None` at the end."""
    try:
        left = left[os.write(pipe, left[:65536]) :] if left else left
    except BlockingIOError:
        return left
    except OSError:
        return None
    return left or None


def drain(pipe, stream):
    """Reads what the program has written; true at the end."""
    try:
        found = os.read(pipe, 65536)
    except BlockingIOError:
        return False
    except OSError:
        return True
    stream += found
    return not found


def kill_all():
    """Kills all processes that the program has started, which are children of this one when their parents have ended."""
    own = os.getpid()
    for _ in range(10_000):
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat") as file:
                        parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
                except (OSError, ValueError, IndexError):
                    pass
        found = [pid for pid in parents if is_descendant(pid, own, parents)]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)
    sys.exit("processes of the program cannot be killed")


def is_descendant(pid, ancestor, parents):
    seen = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def read(folder, name):
    """A file that the program made, if it is a plain one."""
    try:
        with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if os.path.isfile(file.fileno()):
                yield {"name": name, "content": base64.b64encode(file.read()).decode()}
    except OSError:
        pass


main()
