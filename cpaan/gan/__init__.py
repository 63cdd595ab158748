"""The paper, Gao et al. (2018): its equations, and the functions that compute them.

===================================  ===========================================================
Equation                             Function
===================================  ===========================================================
prototype l_y                        `cpaan.protocol.tasks.BaseSet`, `episodes.Episodes.draw`
similarity α (NBS-S and NBS-H)       `cpaan.protocol.neighbours.similarity`
adversarial objective L_adv          `objectives.discriminator_loss`, `.adversarial_loss`
cycle-consistency objective L_cyc    `objectives.cycle_loss`
mixture of Gaussians for z           `noise.MixtureNoise`
covariances Σ_x and Σ_G              `covariance.covariances`
covariance distance d_cov            `covariance.covariance_distances`
covariance objective L_cov           `objectives.covariance_terms`
Ky Fan m-norm and its subgradient    `covariance.ky_fan_norm`
objectives of c-GAN to cCov-GAN      `gans.GANS`, `objectives.generator_weights`, `.objective`
meta-training                        `episodes.MetaEpisodes`, `loop.TrainingRun`
meta-testing                         `cpaan.protocol.augmentation.synthesise`
spiral                               `spiral.run_spiral`
===================================  ===========================================================

The generators and discriminators are in `networks`, all settings in `config`. Where the paper is
silent or ambiguous, the docstring of the function or of the setting says what we do.

`loop` defines a training step, which runs everywhere. `fast` computes the same on a GPU in a
fraction of the time, and `engine` chooses between the two.
"""
