"""Greedy decoding with llama.cpp's in-process server, one request per prompt: --file FILE is the model."""

from concurrent.futures import ThreadPoolExecutor

import xllamacpp

from workloads import SHAPES, arguments, peak_mib, prompts, report, threads, timed

given = arguments("--file")
shape = SHAPES["S"]
sequences, prompt, new = shape.decode
start_mib = peak_mib()
parameters = xllamacpp.CommonParams()
parameters.model.path = given.file
parameters.n_parallel = sequences
parameters.n_ctx = sequences * (prompt + new)
parameters.n_batch = parameters.n_ubatch = sequences * prompt
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads()
parameters.cont_batching = True
parameters.cache_prompt = False
parameters.warmup = False
parameters.verbosity = -1
server = xllamacpp.Server(parameters)


def complete(ids: list[int]) -> None:
    answer = server.handle_completions(
        {"prompt": ids, "max_tokens": new, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
    )
    used = answer["usage"]
    assert used["prompt_tokens"] == prompt and used["completion_tokens"] == new, answer


with ThreadPoolExecutor(sequences) as pool:
    requests = prompts(shape, sequences, prompt)
    seconds = timed(given.steps, given.warm, lambda: list(pool.map(complete, requests)))
report(seconds, sequences * new, start_mib=start_mib, versions=f"xllamacpp {xllamacpp.__version__}")
