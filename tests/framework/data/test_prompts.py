"""The text that the policy reads, and its tokens."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from apo_lightning.data import PromptTemplate, Row, build_prompt
from apo_lightning.errors import ConfigError

ROW = Row(id="a", problem="What is 13 + 5?", answer="18", prefill="13 + 5 =")
CHAT_TEMPLATE = (
    "<s>{% if date_string is defined %}[{{ date_string }}]{% else %}[today]{% endif %}"
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(chat_template=CHAT_TEMPLATE):
    """One token a byte; puts <s> before any text, as Llama's tokenizer does."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(["<s>", *alphabet])}, merges=[]))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=chat_template)


def build(template, row=ROW, tokenizer=None):
    return build_prompt(row, tokenizer or byte_tokenizer(), template, source="arithmetic")


def test_the_chat_template_the_instruction_and_the_prefill_stand_in_this_order():
    prompt = build(PromptTemplate(instruction="{problem} Put it in \\boxed{}.", system="Be brief."))
    assert prompt.text == (
        "<s>[26 Jul 2024]<system>Be brief.<user>What is 13 + 5? Put it in \\boxed{}.<assistant>13 + 5 ="
    )
    assert (prompt.id, prompt.problem, prompt.answer, prompt.prefill) == ("a", ROW.problem, "18", "13 + 5 =")
    assert prompt.source == "arithmetic"
    assert byte_tokenizer().decode(prompt.token_ids) == prompt.text
    assert prompt.token_ids.count(0) == 1  # the template writes the start token
    assert "<system>" not in build(PromptTemplate()).text


def test_a_base_template_gets_the_tokenizers_start_token():
    template = PromptTemplate(instruction="Compute. {problem}", base_template="Q: {problem}\nA: ")
    prompt = build(template, tokenizer=byte_tokenizer(chat_template=None))
    assert prompt.text == "Q: Compute. What is 13 + 5?\nA: 13 + 5 ="
    assert prompt.token_ids[0] == 0
    assert prompt.token_ids.count(0) == 1
    assert len(prompt.token_ids) == 1 + len(prompt.text)


def test_a_problem_with_braces_is_put_in_as_it_is():
    row = Row(id="a", problem=r"Find $\frac{1}{x}$ and {problem}.", answer="1")
    template = PromptTemplate(instruction="[{problem}]", base_template="({problem})")
    assert build(template, row).text == r"([Find $\frac{1}{x}$ and {problem}.])"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"instruction": "Solve it."}, "instruction 'Solve it.' has no {problem}"),
        ({"base_template": "Q: A:"}, "prompt_template 'Q: A:' has no {problem}"),
        ({"base_template": "{problem}", "system": "Be brief."}, "no place for it"),
        ({"instruction": r"{problem}\nAnswer briefly."}, r"instruction .* has \\n as two characters"),
        ({"instruction": r"{problem}\nput it in a box."}, "for a line break write"),
        ({"system": r"Be brief.\tBe kind."}, r"system .* has \\t as two characters"),
        ({"base_template": r"Q: {problem}\r\nA:"}, r"prompt_template .* has \\r as two characters"),
    ],
)
def test_a_template_that_loses_something_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PromptTemplate(**settings)


def test_commands_of_latex_are_no_line_breaks():
    assert PromptTemplate(instruction=r"{problem} $\neq \nu \times$").user_turn("1") == r"1 $\neq \nu \times$"


def test_a_rows_own_system_message_is_in_its_prompt_and_never_a_second_one():
    row = replace(ROW, system="Be kind.")
    assert "<system>Be kind.<user>What" in build(PromptTemplate(), row).text
    assert build(PromptTemplate(system="Be kind."), row) == build(PromptTemplate(), row)
    for template in (PromptTemplate(system="Be brief."), PromptTemplate(base_template="{problem}")):
        with pytest.raises(ConfigError, match=r"problem 'a' brings a system message, for which .* leaves no place"):
            build(template, row)


def test_a_tokenizer_without_a_chat_template_needs_a_base_template():
    with pytest.raises(ConfigError, match="has no chat template"):
        build(PromptTemplate(), tokenizer=byte_tokenizer(chat_template=None))
