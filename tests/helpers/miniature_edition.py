"""A small edition of the laboratory: one world, one tuned method, one fixed arm."""

MINIATURE = """
margin: 0.02
base_weights: [0.5]
part_weights: [1.0, 0.5]
temperatures: [2.0, 1.0]
worlds:
  small:
    family: locks
    level: 0.2
    base: [data=locks, data.num_validation=16, data.num_train=256, pretraining.num_steps=4]
    run: [experiment=lab/locks, data.num_validation=16, data.num_train=256, trainer.max_steps=2]
tuning: {locks: small}
rates: {locks: [1.0e-3, 1.0e-2]}
tuned:
  apo: {overrides: [algo=apo], key: algo.loss.pull_coef, values: [0.1]}
stages:
  tuning:
    methods: all
    seeds: {small: [101]}
  main:
    methods: all
    average: true
    averaged_by_part: [grpo]
    decode: true
    seeds: {small: [1]}
    arms: {grpo: [algo=grpo]}
  parts:
    like: apo
    seeds: {small: [1]}
    arms: {wide: [algo=apo, algo.loss.anchor_size=12], strong: [algo=apo, algo.loss.pull_coef=0.2]}
questions:
  best: {text: "Is it better?", stage: main, worlds: [small], pairs: [[grpo, apo], [apo, apo+average]]}
predictions: []
"""
