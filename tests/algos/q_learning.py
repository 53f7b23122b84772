"""Deep Q-learning (Mnih et al. 2015): `operant train cartpole algo.name=q_learning.py:QLearning`."""

import torch

from operant.algos import OffPolicy, metric


class QLearning(OffPolicy):
    """One gradient step on E[(Q(s, a) - y)^2] / 2 for each batch of the replay."""

    metrics = (
        metric("loss/q", "Q loss", order=80),
        metric("q_mean", "mean Q value", figure="Q", order=45),
    )

    def learn(self, batch):
        # y = R + gamma^n max_a' Q'(s', a'), with Q' of the target network; `discount` is 0 where the episode ended.
        with torch.no_grad():
            following = self.q(batch.next_observation, batch.next_legal, target=True).amax(dim=0)
            target = batch.reward + batch.discount * following
        q = self.q(batch.observation).gather(0, batch.action.long())[0]
        loss = 0.5 * (q - target).square().mean()

        self.step(loss)
        self.record(loss, q.mean())


ALGO = QLearning
