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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        # What the chat template does with the messages.
        ({"chat_template": PARTS.replace("KIND", "image")}, "leaves out or changes the user's message"),
        ({"chat_template": chat("{{ message['content'] | lower }}")}, "leaves out or changes the user's message"),
        ({"chat_template": chat("{{ message['content'][:12] }}")}, "leaves out or changes the user's message"),
        ({"chat_template": chat("{{ message['content'] | replace(' ', '') }}")}, "leaves out or changes the user's"),
        ({"chat_template": chat("{{ message['content'][:40] }}"), "problem": "1 + " * 20}, "user message of problem 'p0'"),
        ({"chat_template": chat("{{ message['content'] | e }}"), "problem": "Is 1 < 2?"}, "user message of problem 'p0'"),
        ({"chat_template": chat("{{ message['content'] + 1 }}")}, "cannot be rendered … : give the model a prompt_template"),
        ({"chat_template": chat("{{ raise_exception('never') }}")}, "cannot be rendered (never)"),
        ({"chat_template": chat(loop=LOOP.replace("in messages", "in messages if message['role'] != 'system'")),
          "system": "Be brief."}, "the system message of problem 'p0': write it into data.instruction and set data.sys"),
        ({"chat_template": "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + chat(),
          "system": "Be brief."}, "cannot be rendered … : set data.system=null, or"),
        # Where a prompt begins and ends.
        ({"chat_template": chat(opening="")}, "does not open the assistant's turn"),
        ({"chat_template": chat(opening="\n")}, "does not open the assistant's turn"),
        ({"chat_template": "<|turn|>user\n{{ messages[0]['content'] }}<|end|>"}, "does not open the assistant's turn"),
        ({"edit": writing("<|turn|> $A"), "prompt_template": "<|turn|>{problem}"}, "twice … out of the model.prompt_template"),
        ({"edit": writing("<|turn|> $A"), "chat_template": "{{ bos_token }}" + chat()}, "twice … out of the chat template"),
        ({"edit": writing("<|turn|> $A <|end|>"), "prompt_template": "{problem}"}, "ends with 2 '<|end|>', which the tok"),
        ({"chat_template": chat(opening=OPENING.replace("\n", "\n<|end|>"))}, "ends with 2 '<|end|>', which the templ"),
        # Where a completion ends.
        ({"edit": with_im_end, "chat_template": IM_END}, "no stop token (they are 2 '<|end|>') … give model.stop_tokens=['<|im_end|>']"),
        ({"edit": with_im_end, "prompt_template": CHATML, "chat_template": None}, "model.stop_tokens=['<|im_end|>']"),
        ({"edit": with_im_end, "prompt_template": CHATML, "chat_template": IM_END}, "model.stop_tokens=['<|im_end|>']"),
        ({"chat_template": IM_END}, "with '<|im_end|>', of which the tokenizer makes 10 tokens"),
        ({"chat_template": chat(loop=LOOP.replace("<|end|>", ""))}, "model.stop_tokens=['<|turn|>']"),
        ({"edit": without_end, "eos_token_id": None}, "nothing ends a completion of tested"),
        ({"edit": without_end, "eos_token_id": 500, "prompt_template": "{problem}"}, "nothing ends a completion"),
        ({"eos_token_id": 5}, "eos_token_id of the model's config is 5 '!', an ordinary token"),
        # What the model can read.
        ({"edit": with_im_end, "chat_template": IM_END, "vocab_size": 98}, "'<|im_end|>', and the model's embedding has 98"),
        ({"problem": "What is 1 × 1?"}, "1 of 6 prompts have characters that the tokenizer loses, first '×' in problem 'p0'"),
        ({"edit": normalising(normalizers.Lowercase())}, "6 of 6 prompts have characters … first 'W'"),
        ({"edit": normalising(normalizers.Replace("1", ""))}, "6 of 6 prompts have characters … first '1'"),
        ({"problem": "What is \ud800?"}, "problem 'p0' has '\\ud800', half of a character"),
    ],
)  # fmt: skip
def test_a_fault_of_template_or_tokenizer_is_one_line_with_its_remedy(given, said, tmp_path):
    with pytest.raises(ConfigError) as refused:
        lines_of(tmp_path, **given)
    line = str(refused.value)
    assert all(part in line for part in said.split(" … ")), line
    assert "\n" not in line
    assert len(line) < 400


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "<|turn|>user\nQ<|end|><|turn|>assistant\n"),
        ({"system": "Be brief."}, "<|turn|>system\nBe brief.<|end|><|turn|>user\nQ<|end|><|turn|>assistant\n"),
        ({"chat_template": PARTS.replace("KIND", "text")}, "<|turn|>user\nQ<|end|><|turn|>assistant\n"),
        ({"chat_template": chat(opening=OPENING.replace("\n", "\n<think>\n"))},
         "<|turn|>user\nQ<|end|><|turn|>assistant\n<think>\n"),
        # The turn is opened without being asked for, and only the end of an answer is marked.
        ({"chat_template": "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
          "{% else %} {{ m['content'] }}<|end|>{% endif %}{% endfor %}"}, "[INST] Q [/INST]"),
        # No end of an answer but the next turn, as for GLM.
        ({"chat_template": chat(loop=LOOP.replace("<|end|>", "")), "stop_tokens": ["<|turn|>"]},
         "<|turn|>user\nQ<|turn|>assistant\n"),
        ({"chat_template": "{{ messages[0]['content'] }}"}, "Q"),
        ({"edit": with_im_end, "chat_template": IM_END, "stop_tokens": ["<|im_end|>"]},
         "<|turn|>user\nQ<|im_end|><|turn|>assistant\n"),
        ({"edit": with_im_end, "chat_template": None, "prompt_template": CHATML, "stop_tokens": ["<|im_end|>"]},
         "<|turn|>user\nQ<|im_end|>\n<|turn|>assistant\n"),
        ({"edit": writing("<|turn|> $A"), "chat_template": None, "prompt_template": "Q: {problem}\nA:"}, "Q: Q\nA:"),
        ({"chat_template": None, "prompt_template": "<|turn|>{problem}<|turn|><think>\n"}, "<|turn|>Q<|turn|><think>\n"),
        ({"chat_template": None, "prompt_template": "{problem}", "eos_token_id": [2, 1]}, "Q"),
    ],
)  # fmt: skip
def test_a_sound_one_passes_and_its_first_prompt_is_shown(given, text, tmp_path):
    first, tokens = lines_of(tmp_path, problem="Q", **given)
    assert first == f"first prompt: {text!r}"
    assert tokens.startswith(f"its {tokens.split()[1]} tokens: 1 '<|turn|>' " if text[:3] == "<|t" else "its ")
    assert "a completion ends with " in tokens


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
