import pytest
from hydra.utils import instantiate

from apo_lab.puzzles import ReasoningGymSource
from apo_lightning.data import build_prompt
from apo_lightning.data.prompts import PromptTemplate
from apo_lightning.errors import ConfigError
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.rewards.reward import Samples, check_prompts, score_samples
from composing import composed

gym = pytest.importorskip("reasoning_gym")


def test_the_generators_own_scorer_judges_every_answer():
    reward = instantiate(composed("reward=reasoning_gym").reward)
    # The second has many right answers, of which the data set names one.
    for generator, options in (("leg_counting", {"max_animals": 3}), ("countdown", {}), ("simple_equations", {})):
        source = ReasoningGymSource(name="gym", generator=generator, size=12, num_validation=2, options=options)
        source.check()
        problems = source.load()
        assert (len(problems.validation["gym"]), problems.report.num_held_out) == (2, 2)
        rows = problems.train
        assert rows == source.load().train
        template = PromptTemplate(base_template="{problem}")
        prompts = [build_prompt(row, character_tokenizer(), template, source=generator) for row in rows]
        check_prompts(reward, prompts)
        texts = [f"so <answer>{row.answer}</answer>." for row in rows[:-1]] + [f"{rows[-1].answer}\n"]
        ids = [(1,)] * len(texts)
        given = Samples(prompts=prompts, texts=texts, plain_texts=texts, token_ids=ids)
        assert {verdict.status for verdict in score_samples(reward, given)} == {"correct"}
        wrong = ["<answer>nothing</answer>"] * len(texts)
        judged = score_samples(reward, Samples(prompts=prompts, texts=wrong, plain_texts=wrong, token_ids=ids))
        assert {verdict.status for verdict in judged} == {"incorrect"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator": "nothing"}, "cannot make data.generator=nothing .* not registered"),
        ({"generator": "leg_counting", "options": {"max_animal": 3}}, "max_animal"),
    ],
)
def test_what_the_package_refuses_is_one_line(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReasoningGymSource(name="gym", size=9, **settings).check()
