"""programs.json: programs of pytorch/examples and of PyTorch's tutorials, made small, in the form of `tests/golden/keras/loops.json`.

    pip install torch==2.15.0 numpy
    python make_programs.py

Images and kernels lie as ours do. A batch norm keeps the batch's variance as it is, where PyTorch's keeps the unbiased one, and Adam's `eps` is so
small that it does not matter where it is added. There are no biases whose gradient is 0 but for rounding (before a norm or a softmax): Adam makes whole
steps of that.
"""

import copy
import json
from pathlib import Path

import numpy as np
import torch
from make_loops import array, rng, tensor
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

ROWS = 5


class Norm(nn.BatchNorm2d):
    """A batch norm of any rank that keeps biased variances."""

    cumulative = False

    def _check_input_dim(self, x):
        pass

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked
            self.running_mean.lerp_(x.mean(dims), share)
            self.running_var.lerp_(x.var(dims, unbiased=False), share)
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def words(bound, *shape):
    return torch.tensor(rng.integers(0, bound, shape).astype(np.int32))


def filled(module, scale=0.5):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensor(*parameter.shape) * scale + (1 if isinstance(module, Norm) and name == "weight" else 0))
    return module


def layer(module):
    """The variables of a layer as ours are."""
    match module:
        case nn.Linear():
            values = [module.weight.T, module.bias]
        case nn.Conv2d() | nn.ConvTranspose2d():
            values = [module.weight.permute(2, 3, 1, 0), module.bias]
        case Norm():
            values = [module.weight, module.bias, module.running_mean, module.running_var]
        case nn.Embedding():
            values = [module.weight]
        case nn.LayerNorm() | nn.InstanceNorm2d():
            values = [module.weight, module.bias]
        case nn.LSTM() | nn.LSTMCell():
            every = list(module.parameters())
            values = [of for i in range(0, len(every), 4) for of in (every[i].T, every[i + 1].T, every[i + 2] + every[i + 3])]
        case nn.GRU() | nn.GRUCell():
            kernel, recurrent, *biases = [torch.cat([part.chunk(3)[i] for i in (1, 0, 2)]) for part in module.parameters()]
            values = [kernel.T, recurrent.T, torch.stack(biases)]
        case _:
            values = [value for part in module.children() for value in layer(part)]
    return [value for value in values if value is not None]


def last(x):
    """The channels behind all others."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def follow(name, models, inputs, steps, step, **more):
    """A record; `models` are modules or functions that give variables."""
    def variables():
        values = {key: model() if callable(model) and not isinstance(model, nn.Module) else layer(model) for key, model in models.items()}
        return {key: [array(value.detach().numpy()) for value in of] for key, of in values.items()}
    initial, losses = variables(), []
    for number in range(steps):
        given = step(number)
        losses.append([float(str(np.float32(loss.item()))) for loss in given])
    arrays = [array(last(x).numpy()) for x in inputs]
    return {"name": name, "inputs": arrays, "initial": initial, "losses": losses, "final": variables(), **more}


def with_one_bias(model):
    """Trains one of the two biases of an LSTM: both would go the same way, twice as far as ours."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("bias_hh" not in name)


def learn(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def adam(module, rate=0.01, **more):
    return torch.optim.Adam(module.parameters(), lr=rate, eps=1e-12, **more)


def language():
    """word_language_model: the state goes on from batch to batch, without gradients."""
    model = nn.ModuleList([filled(nn.Embedding(7, 4)), filled(nn.LSTM(4, 5, 2, batch_first=True)), filled(nn.Linear(5, 7))])
    text, hidden = words(7, ROWS, 13), None
    with_one_bias(model)

    def step(number):
        nonlocal hidden
        start = number % 3 * 4
        x, y = text[:, start:start + 4], text[:, start + 1:start + 5]
        hidden = (torch.zeros(2, ROWS, 5),) * 2 if start == 0 else [state.detach() for state in hidden]
        model.zero_grad()
        found, hidden = model[1](model[0](x), hidden)
        loss = F.nll_loss(F.log_softmax(model[2](found), -1).reshape(-1, 7), y.reshape(-1).long())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-2.0)
        return [loss]

    return follow("language", {"model": model}, [text], 6, step)


def sines():
    """time_sequence_prediction, in f64 as there; what it says of two further steps comes last."""
    first, second, out = (filled(module.double()) for module in (nn.LSTMCell(1, 3), nn.LSTMCell(3, 3), nn.Linear(3, 1)))
    model = nn.ModuleList([first, second, out])
    with_one_bias(model)
    waves = 0.5 * torch.sin(torch.arange(7) * 0.7 + torch.arange(ROWS)[:, None]).double()
    x, y = waves[:, :-1], waves[:, 1:]

    def call(x, future=0):
        found, h, g = [], (torch.zeros(ROWS, 3).double(),) * 2, (torch.zeros(ROWS, 3).double(),) * 2
        for number in range(x.shape[1] + future):
            h = first(x[:, number:number + 1] if number < x.shape[1] else found[-1], h)
            g = second(h[0], g)
            found.append(out(g[0]))
        return torch.cat(found, 1)

    optimizer = torch.optim.LBFGS([of for of in model.parameters() if of.requires_grad], lr=0.8, max_iter=3, max_eval=9)

    def step(_):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(call(x), y)
            loss.backward()
            return loss
        return [optimizer.step(closure)]

    record = follow("sines", {"model": model}, [x.float(), y.float()], 2, step)
    return {**record, "further": array(call(x, 2).detach().numpy())}


def super_resolution():
    model = nn.Sequential(filled(nn.Conv2d(1, 4, 3, padding=1)), nn.ReLU(), filled(nn.Conv2d(4, 8, 3, padding=1)), nn.PixelShuffle(2))
    x, y = tensor(ROWS, 1, 3, 3), tensor(ROWS, 2, 6, 6)
    optimizer = adam(model)

    def step(_):
        loss = F.mse_loss(model(x), y)
        learn(loss, optimizer)
        return [loss]

    return follow("super_resolution", {"model": model}, [x, y], 4, step)


def style():
    """fast_neural_style: its layers, with a penalty on differences of pixels."""
    model = nn.Sequential(
        nn.ReflectionPad2d(1), filled(nn.Conv2d(2, 3, 3, stride=2, bias=False)), filled(nn.InstanceNorm2d(3, affine=True)), nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="nearest"), nn.ReflectionPad2d(2), filled(nn.Conv2d(3, 2, 5)))
    x = tensor(ROWS, 2, 6, 6)
    optimizer = adam(model)

    def step(_):
        made = model(x)
        content = F.mse_loss(made, x)
        variation = ((made[:, :, 1:] - made[:, :, :-1]).abs().sum() + (made[..., 1:] - made[..., :-1]).abs().sum()) / ROWS
        learn(content + 0.01 * variation, optimizer)
        return [content, variation]

    return follow("style", {"model": model}, [x], 4, step)


def dcgan():
    up = lambda *sizes, **more: filled(nn.ConvTranspose2d(*sizes, bias=False, **more))
    down = lambda *sizes: filled(nn.Conv2d(*sizes, bias=False))
    generator = nn.Sequential(
        up(3, 4, 2, 1, 0), filled(Norm(4), 0.1), nn.ReLU(), up(4, 2, 3, 2, 1, output_padding=1), filled(Norm(2), 0.1), nn.ReLU(),
        up(2, 1, 4, 2, 1), nn.Tanh())
    critic = nn.Sequential(
        down(1, 2, 4, 2, 1), nn.LeakyReLU(0.2), down(2, 3, 4, 2, 1), filled(Norm(3), 0.1), nn.LeakyReLU(0.2), down(3, 1, 2, 1, 0),
        nn.Sigmoid(), nn.Flatten())
    real, noise = tensor(ROWS, 1, 8, 8), tensor(ROWS, 3, 1, 1)
    of_critic, of_generator = adam(critic, 0.002, betas=(0.5, 0.999)), adam(generator, 0.002, betas=(0.5, 0.999))
    ones, zeros = torch.ones(ROWS, 1), torch.zeros(ROWS, 1)

    def step(_):
        made = generator(noise)
        of_real, of_made = F.binary_cross_entropy(critic(real), ones), F.binary_cross_entropy(critic(made.detach()), zeros)
        learn(of_real + of_made, of_critic)
        loss = F.binary_cross_entropy(critic(made), ones)
        learn(loss, of_generator)
        return [of_real + of_made, loss]

    return follow("dcgan", {"critic": critic, "generator": generator}, [real, noise], 3, step)


def imagenet():
    """Kernels decay, biases and norms do not; a batch counts as an epoch."""
    model = nn.Sequential(
        filled(nn.Conv2d(2, 4, 3, 2, 1, bias=False)), filled(Norm(4), 0.1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), filled(nn.Linear(4, 3)))
    x, y = tensor(ROWS, 2, 8, 8), words(3, ROWS)
    decays = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": decays, "weight_decay": 0.05}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(_):
        loss = criterion(model(x), y.long())
        learn(loss, optimizer)
        schedule.step()
        return [loss]

    return follow("imagenet", {"model": model}, [x, y], 6, step)


def snli():
    """Sequences of several lengths, packed; both biases of an LSTM are trained."""
    model = nn.ModuleList([filled(nn.Embedding(8, 4)), filled(nn.LSTM(4, 3, bidirectional=True, batch_first=True)), filled(nn.Linear(6, 3))])
    lengths = torch.tensor([4, 2, 3, 1, 4])
    x, y = words(7, ROWS, 4) + 1, words(3, ROWS)
    x[torch.arange(4) >= lengths[:, None]] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step(_):
        packed = nn.utils.rnn.pack_padded_sequence(model[0](x), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = model[1](packed)
        loss = F.cross_entropy(model[2](torch.cat([h[0], h[1]], 1)), y.long())
        learn(loss, optimizer)
        return [loss]

    return follow("snli", {"model": model}, [x, y], 4, step)


def translation():
    """The tutorial of seq2seq: a decoder that looks at the encoder's steps by Bahdanau's attention, taught by the right words."""
    model = nn.ModuleList([filled(module, 0.6) for module in (
        nn.Embedding(7, 4), nn.GRU(4, 4, batch_first=True), nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1, bias=False),
        nn.GRUCell(8, 4), nn.Linear(4, 6))])
    embed, encoder, embed_out, query, key, score, decoder, out = model
    x, y = words(7, ROWS, 4), words(6, ROWS, 3)
    optimizer = adam(model)

    def step(_):
        keys, h = encoder(embed(x))
        h, logits, word = h[0], [], torch.zeros(ROWS, dtype=torch.long)
        for number in range(3):
            scores = score(torch.tanh(query(h)[:, None] + key(keys)))
            context = (F.softmax(scores, 1) * keys).sum(1)
            h = decoder(torch.cat([embed_out(word), context], 1), h)
            logits.append(out(h))
            word = y[:, number].long()
        loss = F.nll_loss(F.log_softmax(torch.stack(logits, 1), -1).reshape(-1, 6), y.reshape(-1).long())
        learn(loss, optimizer)
        return [loss]

    return follow("translation", {"model": model}, [x, y], 4, step)


def dense(*sizes, between=nn.Tanh):
    layers = [part for a, b in zip(sizes, sizes[1:]) for part in (filled(nn.Linear(a, b)), between())]
    return nn.Sequential(*layers[:-1])


def reinforce():
    """reinforcement_learning: the loss is a sum over the steps of an episode."""
    model, x, actions = dense(3, 4, 2), tensor(ROWS, 3), words(2, ROWS)
    rewards, returns, optimizer = tensor(ROWS), [], adam(model, 0.02)
    for reward in reversed(rewards.tolist()):
        returns.insert(0, reward + 0.9 * (returns[0] if returns else 0.0))
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-7)

    def step(_):
        chosen = torch.distributions.Categorical(F.softmax(model(x), -1)).log_prob(actions)
        loss = (-chosen * returns).sum()
        learn(loss, optimizer)
        return [loss]

    return follow("reinforce", {"model": model}, [x, rewards, actions], 4, step)


def spatial_transformer():
    model = nn.ModuleList([filled(nn.Linear(25, 6), 0.1), filled(nn.Linear(25, 3))])
    model[0].bias.data += torch.tensor([1.0, 0, 0, 0, 1, 0])
    x, y = tensor(ROWS, 1, 5, 5), words(3, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def step(_):
        theta = model[0](x.flatten(1)).view(-1, 2, 3)
        seen = F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)
        loss = F.nll_loss(F.log_softmax(model[1](seen.flatten(1)), 1), y.long())
        learn(loss, optimizer)
        return [loss]

    return follow("spatial_transformer", {"model": model}, [x, y], 4, step)


def derivatives():
    """Gradients of each example, clipped; gradients and second derivatives by the input (FGSM, Hessians)."""
    model, x, y = dense(4, 5, 3), tensor(ROWS, 4), words(3, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def loss_of(parameters, x, y):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    def step(_):
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(parameters, x, y.long())
        norms = sum(of.flatten(1).square().sum(1) for of in each.values()).sqrt()
        factors = (0.5 / norms).clamp(max=1.0)
        slopes = torch.func.vmap(torch.func.grad(loss_of, 1), (None, 0, 0))(parameters, x, y.long())
        hessians = torch.func.vmap(torch.func.hessian(loss_of, 1), (None, 0, 0))(parameters, x, y.long())
        losses = [F.cross_entropy(model(x), y.long()), F.cross_entropy(model((x + 0.1 * slopes.sign()).clamp(-2, 2)), y.long())]
        for name, parameter in model.named_parameters():
            parameter.grad = torch.einsum("b,b...->...", factors, each[name]) / ROWS
        optimizer.step()
        return [*losses, hessians.square().sum() / ROWS]

    return follow("derivatives", {"model": model}, [x, y], 4, step)


def parametrized():
    """`spectral_norm` and `weight_norm`: gradients go through the norms, and one iteration is made in each forward pass."""
    spectral = parametrizations.spectral_norm(filled(nn.Linear(4, 5)))
    weight = parametrizations.weight_norm(filled(nn.Linear(5, 3)))
    model = nn.Sequential(spectral, nn.ReLU(), weight)
    x, y = tensor(ROWS, 4), words(3, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def variables():
        one, two = spectral.parametrizations.weight, weight.parametrizations.weight
        return [one.original.T, one[0]._u.clone(), one[0]._v.clone(), spectral.bias, two.original1.T, two.original0[:, 0], weight.bias]

    def step(_):
        loss = F.cross_entropy(model(x), y.long())
        learn(loss, optimizer)
        return [loss]

    return follow("parametrized", {"model": variables}, [x, y], 4, step)


def averaged():
    """Stochastic weight averaging from the third batch on, and the statistics of the averaged model over two batches."""
    model = nn.Sequential(filled(nn.Linear(4, 6, bias=False)), filled(Norm(6), 0.1), nn.ReLU(), filled(nn.Linear(6, 3)))
    average = torch.optim.swa_utils.AveragedModel(model)
    x, other, y = tensor(ROWS, 4), tensor(ROWS, 4), words(3, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

    def step(number):
        loss = F.cross_entropy(model(x), y.long())
        learn(loss, optimizer)
        if number >= 2:
            average.update_parameters(model)
        if number == 4:
            torch.optim.swa_utils.update_bn([x, other], average)
        return [loss]

    return follow("averaged", {"model": model, "average": average.module}, [x, other, y], 5, step)


def forward_forward():
    """Each layer learns by a loss of its own, from what the layer before gives after its step."""
    layers = [filled(nn.Linear(4, 5)), filled(nn.Linear(5, 4))]
    optimizers = [adam(layer, 0.03) for layer in layers]
    positive, negative = tensor(ROWS, 4), tensor(ROWS, 4)

    def step(_):
        given, losses = [positive, negative], []
        call = lambda layer, x: F.relu(layer(x / (x.norm(2, 1, keepdim=True) + 1e-4)))
        for layer, optimizer in zip(layers, optimizers):
            good, bad = (call(layer, x).pow(2).mean(1) for x in given)
            losses.append(torch.log(1 + torch.exp(torch.cat([-good + 2.0, bad - 2.0]))).mean())
            learn(losses[-1], optimizer)
            given = [call(layer, x).detach() for x in given]
        return losses

    return follow("forward_forward", {"first": layers[0], "second": layers[1]}, [positive, negative], 3, step)


def pruned():
    model, x, y = dense(4, 5, 3), tensor(ROWS, 4), words(3, ROWS)
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(_):
        loss = F.cross_entropy(model(x), y.long())
        learn(loss, optimizer)
        model[0].weight = model[0].weight_orig * model[0].weight_mask
        return [loss]

    return follow("pruned", {"model": model}, [x, y], 4, step, mask=array(model[0].weight_mask.T.numpy()))


def groups():
    """Groups of parameters with rates and decays of their own, under one schedule."""
    model = nn.Sequential(filled(nn.Linear(4, 6)), filled(nn.LayerNorm(6)), nn.ReLU(), filled(nn.Linear(6, 3)))
    x, y = tensor(ROWS, 4), words(3, ROWS)
    of = lambda parts, kernels: [p for part in parts for p in part.parameters() if (p.dim() > 1) == kernels]
    optimizer = torch.optim.AdamW([
        {"params": of(model[:2], True)}, {"params": of(model[:2], False), "weight_decay": 0.0},
        {"params": of(model[3:], True), "lr": 0.02}, {"params": of(model[3:], False), "lr": 0.02, "weight_decay": 0.0},
    ], lr=0.002, weight_decay=1.0, eps=1e-12)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    def step(_):
        loss = F.cross_entropy(model(x), y.long())
        learn(loss, optimizer)
        schedule.step()
        return [loss]

    return follow("groups", {"model": model}, [x, y], 6, step)


def optimizer(name, make, gamma=1.0):
    """A classifier under an optimizer of PyTorch, whose rate falls with every batch."""
    def program():
        model, x, y = dense(4, 5, 3), tensor(ROWS, 4), words(3, ROWS)
        optimizer = make(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)

        def step(_):
            loss = F.cross_entropy(model(x), y.long())
            learn(loss, optimizer)
            schedule.step()
            return [loss]

        return follow(name, {"model": model}, [x, y], 4, step)
    return program


OPTIMIZERS = (
    optimizer("mnist", lambda of: torch.optim.Adadelta(of, lr=1.0), 0.7),
    optimizer("nadam", lambda of: torch.optim.NAdam(of, lr=0.02, momentum_decay=1.0, eps=1e-12)),
    optimizer("adagrad", lambda of: torch.optim.Adagrad(of, lr=0.05)),
)


def losses():
    """Losses that are called or scaled otherwise here."""
    x, y, counts = tensor(ROWS, 4), tensor(ROWS, 4), words(4, ROWS, 4).float()
    steps, labels = tensor(ROWS, 6, 3), torch.tensor([[1, 2], [2, 0], [1, 1], [2, 1], [1, 0]], dtype=torch.int32)
    shares = F.softmax(y, 1)

    def step(_):
        lengths = (labels > 0).sum(1)
        logs = F.log_softmax(steps.transpose(0, 1), -1)
        return [
            F.smooth_l1_loss(x, y, beta=0.5), F.kl_div(F.log_softmax(x, 1), shares, reduction="batchmean"),
            F.poisson_nll_loss(x, counts), F.cosine_embedding_loss(x, y, torch.ones(ROWS)),
            F.ctc_loss(logs, labels, torch.full((ROWS,), 6), lengths, zero_infinity=False)]

    return follow("losses", {}, [x, y, counts, shares, steps, labels], 1, step)


PROGRAMS = (language, sines, super_resolution, style, dcgan, imagenet, snli, translation, reinforce, spatial_transformer, derivatives,
            parametrized, averaged, forward_forward, pruned, groups, *OPTIMIZERS, losses)

if __name__ == "__main__":
    text = json.dumps({"torch": torch.__version__, "records": [program() for program in PROGRAMS]}, separators=(",", ":"))
    Path(__file__).with_name("programs.json").write_text(text + "\n")
