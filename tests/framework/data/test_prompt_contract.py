"""Templates and tokenizers with a fault, each with the line that refuses it, and sound ones of every style."""

import pytest
from tokenizers import normalizers, processors
from transformers import AutoConfig

from apo_lightning.data import PromptTemplate, Row
from apo_lightning.data.prompt_contract import check_prompts_of_model
from apo_lightning.data.prompts import build_prompts
from apo_lightning.errors import ConfigError
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import CHAT_TEMPLATE, character_tokenizer

LOOP = "{% for message in messages %}<|turn|>{{ message['role'] }}\n{CONTENT}<|end|>{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
CONTENT = "{{ message['content'] }}"


def chat(content=CONTENT, loop=LOOP, opening=OPENING):
    return loop.replace("{CONTENT}", content) + opening


PARTS = chat("{% for part in message['content'] %}{% if part.type == 'KIND' %}{{ part.text }}{% endif %}{% endfor %}")
IM_END = CHAT_TEMPLATE.replace("<|end|>", "<|im_end|>")
CHATML = "<|turn|>user\n{problem}<|im_end|>\n<|turn|>assistant\n"


def with_im_end(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})


def writing(single):
    """Puts what a tokenizer may put around any text: <|turn|> as its beginning, <|end|> as its end."""

    def edit(tokenizer):
        tokenizer.bos_token = "<|turn|>"
        special = [("<|turn|>", 1), ("<|end|>", 2)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=special
        )

    return edit


def with_think(tokenizer):
    tokenizer.add_tokens(["<think>"])  # no special token, as of DeepSeek-R1 and Qwen3


def without_end(tokenizer):
    tokenizer.eos_token = tokenizer.pad_token = None


def normalising(normalizer):
    return lambda tokenizer: setattr(tokenizer.backend_tokenizer, "normalizer", normalizer)


def lines_of(folder, *, chat_template=CHAT_TEMPLATE, edit=None, problem="What is 1 + 1?", system=None, **given):
    """What is said of six prompts, with a model folder that has no weights."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = chat_template
    if edit is not None:
        edit(tokenizer)
    tokenizer.save_pretrained(folder)
    AutoConfig.for_model(
        "llama", vocab_size=given.pop("vocab_size", len(tokenizer)), eos_token_id=given.pop("eos_token_id", 2)
    ).save_pretrained(folder)
    spec = PolicySpec(name="tested", path=str(folder), **given)
    tokenizer = spec.load_tokenizer()
    template = PromptTemplate(system=system, base_template=spec.prompt_template)
    problems = [problem, *(f"What is {i} + 1?" for i in range(5))]
    rows = [Row(id=f"p{i}", problem=problem, answer="2") for i, problem in enumerate(problems)]
    return check_prompts_of_model(build_prompts(rows, tokenizer, template, source="s"), tokenizer, spec)


CHANGED = "leaves out or changes the user's message"
UNOPENED = "does not open the assistant's turn (add_generation_prompt changes nothing)"
CUT, ESCAPED, NO_SYSTEM = (
    {"chat_template": chat("{{ message['content'][:40] }}"), "problem": "1 + " * 20},
    {"chat_template": chat("{{ message['content'] | e }}"), "problem": "Is 1 < 2?"},
    {"chat_template": chat(loop=LOOP.replace("in messages", "in messages if message['role'] != 'system'"))},
)
REFUSES_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + chat()
BEGUN, BEGUN_AND_ENDED, TURN = (
    writing("<|turn|> $A"),
    writing("<|turn|> $A <|end|>"),
    "<|turn|>user\nQ<|end|><|turn|>assistant\n",
)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        # What the chat template does with the messages.
        ({"chat_template": PARTS.replace("KIND", "image")}, CHANGED),
        ({"chat_template": chat("{{ message['content'] | lower }}")}, CHANGED),
        ({"chat_template": chat("{{ message['content'][:12] }}")}, CHANGED),
        ({"chat_template": chat("{{ message['content'] | replace(' ', '') }}")}, CHANGED),
        (CUT, "the user message of problem 'p0': give the model a prompt_template"),
        (ESCAPED, "the user message of problem 'p0': give the model a prompt_template"),
        (
            {"chat_template": chat("{{ message['content'] + 1 }}")},
            "cannot be rendered … : give the model a prompt_templ",
        ),
        ({"chat_template": chat("{{ raise_exception('never') }}")}, "cannot be rendered (never)"),
        (
            {**NO_SYSTEM, "system": "S"},
            "the system message of problem 'p0': … data.instruction and set data.system=null",
        ),
        ({"chat_template": REFUSES_SYSTEM, "system": "S"}, "cannot be rendered … : set data.system=null, or"),
        # Where a prompt begins and ends.
        ({"chat_template": chat(opening="")}, UNOPENED),
        ({"chat_template": chat(opening="\n")}, UNOPENED),
        ({"chat_template": "<|turn|>user\n{{ messages[0]['content'] }}<|end|>"}, UNOPENED),
        ({"edit": BEGUN, "prompt_template": "<|turn|>{problem}"}, "twice: take it out of model.prompt_template"),
        ({"edit": BEGUN, "chat_template": "{{ bos_token }}" + chat()}, "twice: take it out of the chat template"),
        (
            {"edit": BEGUN_AND_ENDED, "prompt_template": "{problem}"},
            "ends with 2 '<|end|>' … out of the post_processor",
        ),
        ({"chat_template": chat(opening=OPENING + "<|end|>")}, "ends with 2 '<|end|>' … out of the chat template"),
        # Where a completion ends.
        ({"edit": with_im_end, "chat_template": IM_END}, "99 '<|im_end|>' … (they are 2 '<|end|>') … ['<|im_end|>']"),
        ({"edit": with_im_end, "chat_template": None, "prompt_template": CHATML}, "model.stop_tokens=['<|im_end|>']"),
        ({"edit": with_im_end, "prompt_template": CHATML}, "model.stop_tokens=['<|im_end|>']"),
        ({"chat_template": IM_END}, "with '<|im_end|>', of which the tokenizer makes 10 tokens"),
        ({"chat_template": chat(loop=LOOP.replace("<|end|>", ""))}, "model.stop_tokens=['<|turn|>']"),
        ({"edit": without_end, "eos_token_id": None}, "nothing ends a completion of tested"),
        ({"edit": without_end, "eos_token_id": 500, "prompt_template": "{problem}"}, "nothing ends a completion"),
        ({"eos_token_id": 5}, "eos_token_id of the model's config is 5 '!', an ordinary token"),
        # What the model can read.
        (
            {"edit": with_im_end, "chat_template": IM_END, "vocab_size": 98},
            "99 '<|im_end|>', and … embedding has 98 rows",
        ),
        ({"problem": "What is 1 × 1?"}, "1 of 6 prompts have characters … loses, first '×' in problem 'p0'"),
        ({"edit": normalising(normalizers.Lowercase())}, "6 of 6 prompts have characters … first 'W'"),
        ({"edit": normalising(normalizers.Replace("1", ""))}, "6 of 6 prompts have characters … first '1'"),
        (
            {"edit": normalising(normalizers.Replace(" ", ""))},
            "6 of 6 prompts have characters … first ' ' … tokenizer_class",
        ),
        ({"problem": "What is \ud800?"}, r"problem 'p0' has '\ud800', half of a character"),
    ],
)
def test_a_fault_of_template_or_tokenizer_is_one_line_with_its_remedy(given, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        lines_of(tmp_path, **given)
    line = str(refused.value)
    assert all(part in line for part in said.split(" … ")), line
    assert "\n" not in line
    assert len(line) < 400


# The turn is opened without being asked for, and only the end of an answer is marked.
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] }}<|end|>{% endif %}{% endfor %}"
)
GLM = chat(loop=LOOP.replace("<|end|>", ""))
"""No end of an answer but the next turn."""
R1 = "<|turn|>{problem}<|turn|><think>\n"
ALWAYS = chat("{{ '<think>' * (message['role'] == 'assistant') }}" + CONTENT, opening="<|turn|>assistant")
"""Opened without being asked, and more marks before an answer."""
DATED = "{{ strftime_now('%d %B %Y') }}" + CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, TURN),
        ({"system": "S"}, f"<|turn|>system\nS<|end|>{TURN}"),
        ({"chat_template": PARTS.replace("KIND", "text")}, TURN),
        ({"chat_template": chat(opening=OPENING.replace("\n", "\n<think>\n"))}, f"{TURN}<think>\n"),
        ({"chat_template": ALWAYS}, TURN.rstrip()),
        ({"chat_template": "<|turn|>user\n{{ messages[-1]['content'] }}<|end|><|turn|>assistant"}, TURN.rstrip()),
        ({"chat_template": DATED}, f"26 July 2024{TURN}"),
        ({"chat_template": MISTRAL}, "[INST] Q [/INST]"),
        ({"chat_template": GLM, "stop_tokens": ["<|turn|>"]}, TURN.replace("<|end|>", "")),
        ({"chat_template": "{{ messages[0]['content'] }}"}, "Q"),
        (
            {"edit": with_im_end, "chat_template": IM_END, "stop_tokens": ["<|im_end|>"]},
            TURN.replace("<|end|>", "<|im_end|>"),
        ),
        (
            {"edit": with_im_end, "prompt_template": CHATML, "stop_tokens": ["<|im_end|>"]},
            CHATML.replace("{problem}", "Q"),
        ),
        ({"edit": BEGUN, "chat_template": None, "prompt_template": "Q: {problem}\nA:"}, "Q: Q\nA:"),
        ({"edit": with_think, "prompt_template": R1}, R1.replace("{problem}", "Q")),
        ({"chat_template": None, "prompt_template": "{problem}", "eos_token_id": [2, 1]}, "Q"),
    ],
)
def test_a_sound_one_passes_and_its_first_prompt_is_shown(given, text, tmp_path):
    first, tokens, *more = lines_of(tmp_path, problem="Q", **given)
    assert first == f"first prompt of s: {text!r}"
    assert " tokens: " in tokens
    assert "; a completion ends with " in tokens
    assert ["reads content parts" in line for line in more] == [True] * ("part.type" in str(given.get("chat_template")))


def test_a_long_prompt_is_shown_by_its_two_ends(tmp_path):
    text, tokens = lines_of(tmp_path, problem="12 + " * 100)
    assert (len(text), len(tokens)) < (300, 300)
    assert " … " in text
    assert " … " in tokens


def test_a_random_model_may_lose_characters_and_says_so(tmp_path):
    spec = PolicySpec(name="tiny", config={"model_type": "llama"})
    tokenizer = spec.load_tokenizer()
    prompts = build_prompts([Row(id="a", problem="1 × 1", answer="1")], tokenizer, PromptTemplate(), source="s")
    assert (
        "1 of 1 prompts have characters that the tokenizer loses" in check_prompts_of_model(prompts, tokenizer, spec)[2]
    )
