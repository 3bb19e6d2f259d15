"""Training goes on, whatever a policy answers."""

from running import train_tiny, training_rows


def test_training_goes_on_under_a_flood_of_hostile_answers(tmp_path):
    train_tiny(
        tmp_path,
        *("reward=math_verify", "reward._target_=rewarding.HostileAnswers", "reward.timeout_s=0.5"),
        *("reward.memory_limit_gib=0.5", "trainer.max_steps=1", "group_size=2"),
    )
    [row] = training_rows(tmp_path)
    assert float(row["reward/num_error"]) == 0
    assert float(row["reward/num_timeout"]) >= 1
