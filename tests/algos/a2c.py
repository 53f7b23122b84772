"""Advantage actor-critic (Mnih et al. 2016), a complete algorithm: `operant train cartpole algo.name=a2c.py:A2C`."""

from operant.algos import Count, Field, OnPolicy, Real, Threshold, metric


class A2C(OnPolicy):
    """One gradient step on each rollout of T steps of N lanes."""

    class Config(OnPolicy.Config):
        """Further keys of `[algo]`; `learning_rate`, `gamma` and others are those of every `OnPolicy`."""

        horizon: Count = Field(8, ge=1, description="steps of each lane in an iteration, T")
        entropy_coefficient: Real = Field(0.01, ge=0, description="weight of the entropy bonus")
        value_coefficient: Real = Field(0.5, ge=0, description="weight of the critic's loss")

    metrics = (
        metric("loss/actor", "actor loss", order=50),
        metric(
            "loss/critic",
            "critic loss",
            figure="critic",
            order=40,
            thresholds=(Threshold("warn", at_least=1e9, advice="lower algo.learning_rate"),),
        ),
        metric("entropy", "entropy", figure="entropy", order=60),
    )

    def learn(self):
        config, batch = self.config, self.batch()
        log_probability, entropy, value = self.evaluate(batch)

        # L = -E[log pi(a|s) A] + c_v 1/2 E[(R - V(s))^2] - c_e E[H(pi(.|s))],  A = R - V(s)
        actor_loss = -(log_probability * batch.advantage).mean()
        critic_loss = 0.5 * (batch.returns - value).square().mean()
        loss = actor_loss + config.value_coefficient * critic_loss - config.entropy_coefficient * entropy.mean()

        self.step(loss)
        self.record(actor_loss, critic_loss, entropy.mean())


ALGO = A2C
