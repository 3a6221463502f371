"""Trains the two small tokenizers of the tests and records their behaviour in transformers.

byte_level/  byte-level BPE with a look-ahead in its pattern, as in Qwen and Llama 3
metaspace/   BPE over "▁" with byte fallback, as in Llama 2 and Mistral
characters/  written by RLoom (`Tokenizer::characters`) and only opened here
tokens.json  texts with their ids, and ids with their texts, for all three

Needs transformers (the files were written with 5.23) and tokenizers (0.23):  python tokens.py
"""

import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

CORPUS = [
    "A loom weaves threads; one thread goes up, another goes down, and the pattern shows only at the end.",
    "12 + 30 = 42, 7 * 6 = 42, 100 - 58 = 42. What is 2 + 2? It's 4, isn't it? They're sure: 3 < 4 <= 5!",
    "def reward(answer, truth):\n    return 1.0 if answer.strip() == truth else 0.0\n\n\tfor i in range(10):\n\t\tpass\n",
    "Zürich, Köln, café, naïve, señor, Ångström; größer als 10 % — „ja“, sagte sie. Привет, мир. Γειά σου.",
    "你好，世界。今天天气很好。東京は日本の首都です。안녕하세요. 👍 😀 🎉 👩‍👩‍👧",
    "The policy samples tokens and the reward says which were good; the policy then samples the good ones more often.",
    "<answer> 42 </answer> ### 42 \\boxed{42} $x^2 + y^2 = z^2$ [1, 2, 3] {\"key\": \"value\"}",
]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = [
    "", " ", "  ", "\n", "a", "Hello, world!", " leading and trailing ", "tabs\tand\n\nlines\r\n  end",
    "They're sure it's 42, isn't it?", "3.14159 1,000,000 1e-7", "Zürich größer e\u0301 \u00e9", "你好，世界。東京",
    "😀👩‍👩‍👧🎉", "<|turn|>user\nhi<|stop|>", "a<|end|>b <call> x</call> <call>y", "\u0000\u0001\u007f\ufffd\u2028\u3000x",
    "the the the", "pattern patterns pat", "▁▁ x ▁y", "<0x41><0x0A>", "def f(x):\n    return x\n",
]
CHARACTER_TEXTS = ["", "12+34=46\n", "a b?\n", "ß語😀\"\\", "1<|eos|>2", "<|pad|>", "<|bos|>c"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(["<|end|>", "<|turn|>", "<|stop|>"])
    tokenizer.add_tokens([AddedToken("<call>", normalized=False, special=False, lstrip=True)])
    # As in folders saved after other uses: loading must ignore truncation and padding.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "bos_token": None, "eos_token": "<|stop|>", "pad_token": {"__type": "AddedToken", "content": "<|end|>", "lstrip": False, "special": True},
        # A token that tokenizer.json lacks.
        "added_tokens_decoder": {str(tokenizer.get_vocab_size()): {
            "content": "<|late|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True}},
        "chat_template": [
            {"name": "default", "template": "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|stop|>\n"
                                            "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"},
            {"name": "tool_use", "template": "{{ tools | tojson }}{{ messages[-1].content }}{{ eos_token }}"}],
    }
    write("byte_level", tokenizer, config)
    (HERE / "byte_level" / "generation_config.json").write_text(json.dumps(
        {"eos_token_id": [tokenizer.token_to_id("<|stop|>"), tokenizer.token_to_id("<|end|>")]}) + "\n")


def metaspace():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(
        [line.replace(" ", "▁") for line in CORPUS],
        trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    spec = json.loads(tokenizer.to_str())
    known = spec["model"]["vocab"]
    order = sorted(known, key=known.get)
    tokens = order[:3] + [f"<0x{byte:02X}>" for byte in range(256)] + order[3:]
    spec["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    spec["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    spec["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    write("metaspace", Tokenizer.from_str(json.dumps(spec)),
          {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False})
    # The older layout: the roles are in a separate file.
    (HERE / "metaspace" / "special_tokens_map.json").write_text(json.dumps(
        {"bos_token": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False},
         "eos_token": "</s>", "unk_token": "<unk>"}, indent=1) + "\n")


def write(name, tokenizer, config):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def observe(name, texts):
    tokenizer = AutoTokenizer.from_pretrained(HERE / name)
    rng = random.Random(17)
    encoded = []
    for text in texts:
        ids = tokenizer.encode(text)
        encoded.append({
            "text": text, "ids": ids, "plain_ids": tokenizer.encode(text, add_special_tokens=False),
            "decoded": tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            "decoded_plain": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)})
    decoded = []
    for _ in range(40):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 12))]
        decoded.append({"ids": ids, "text": tokenizer.decode(ids, clean_up_tokenization_spaces=False)})
    return {
        "vocab_size": len(tokenizer), "special": tokenizer.special_tokens_map,
        "special_ids": {key: getattr(tokenizer, key + "_id") for key in tokenizer.special_tokens_map},
        "encoded": encoded, "decoded": decoded}


def main():
    byte_level()
    metaspace()
    found = {"byte_level": observe("byte_level", TEXTS), "metaspace": observe("metaspace", TEXTS),
             "characters": observe("characters", CHARACTER_TEXTS)}
    (HERE / "tokens.json").write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
