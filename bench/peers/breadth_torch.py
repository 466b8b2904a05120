"""PyTorch on models of many kinds: python breadth_torch.py FILE.keras train|predict [--variant compiled] (see README.md).

The networks of breadth_models.py by hand, of which the file's name says which one.
"""

import breadth

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(breadth.THREADS)
torch.manual_seed(0)
ReLU, Seq = nn.ReLU, nn.Sequential


class Same(nn.Conv2d):
    """With the padding `same` of Keras, whose odd pixel is at the end."""

    def __init__(self, i, o, k=3, s=1, **more):
        super().__init__(i, o, k, s, padding=0 if s > 1 else k // 2, **more)

    def forward(self, x):
        """Pads, and convolves."""
        k, s = self.kernel_size[0], self.stride[0]
        if s > 1:
            pad = max((-(-x.shape[2] // s) - 1) * s + k - x.shape[2], 0)
            x = F.pad(x, (pad // 2, pad - pad // 2, pad // 2, pad - pad // 2))
        return super().forward(x)


class Fn(nn.Module):
    """A function, with the modules that it uses."""

    def __init__(self, call, **modules):
        super().__init__()
        self.call = call
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *x):
        """Its result."""
        return self.call(self, *x)


def mean(*dims):
    """Of some dims."""
    return Fn(lambda _, x: x.mean(dims))


def swap():
    """Channels before steps, or behind them."""
    return Fn(lambda _, x: x.transpose(1, 2))


def last():
    """Channels behind pixels."""
    return Fn(lambda _, x: x.permute(0, 2, 3, 1))


def flat_dense(*sizes):
    """Dense layers with ReLU between them."""
    layers = [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), ReLU())]
    return Seq(*layers[:-1])


class UNet(nn.Module):
    """Halvings, doublings and what skips them."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(self.pair(i, o) for i, o in ((3, 16), (16, 32), (32, 64)))
        self.middle = self.pair(64, 128)
        self.wider = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in (64, 32, 16))
        self.up = nn.ModuleList(self.pair(2 * c, c) for c in (64, 32, 16))
        self.out = nn.Conv2d(16, 4, 1)

    @staticmethod
    def pair(i, o):
        """Two convolutions."""
        return Seq(Same(i, o), ReLU(), Same(o, o), ReLU())

    def forward(self, x):
        """Classes of pixels."""
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for wider, up, skip in zip(self.wider, self.up, skips[::-1]):
            x = up(torch.cat([wider(x), skip], 1))
        return self.out(x).permute(0, 2, 3, 1)


class ChannelNorm(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x):
        """Normalised."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_block(c):
    """7x7 by channel, normalised, and two dense layers."""
    dense = [nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c)]
    inner = Seq(nn.Conv2d(c, c, 7, padding=3, groups=c), last(), nn.LayerNorm(c, 1e-6), *dense)
    return Fn(lambda self, x: x + self.inner(x).permute(0, 3, 1, 2), inner=inner)


def convnext():
    """Two stages of three blocks."""
    first, second = ([convnext_block(c) for _ in range(3)] for c in (64, 128))
    patches, wider = [nn.Conv2d(3, 64, 4, 4), ChannelNorm(64, 1e-6)], [ChannelNorm(64, 1e-6), nn.Conv2d(64, 128, 2, 2)]
    return Seq(*patches, *first, *wider, *second, mean(2, 3), nn.LayerNorm(128, 1e-6), nn.Linear(128, 10))


def mb_block(c, o, k, s):
    """Six times as wide, by channel, weighted by channel, and narrow again."""
    e, q = 6 * c, max(c // 4, 1)
    by_channel = [Same(e, e, k, s, groups=e, bias=False), nn.BatchNorm2d(e), nn.SiLU()]
    wide = Seq(nn.Conv2d(c, e, 1, bias=False), nn.BatchNorm2d(e), nn.SiLU(), *by_channel)
    weight = Seq(Fn(lambda _, x: x.mean((2, 3), keepdim=True)), nn.Conv2d(e, q, 1), nn.SiLU(), nn.Conv2d(q, e, 1), nn.Sigmoid())
    narrow = Seq(nn.Conv2d(e, o, 1, bias=False), nn.BatchNorm2d(o))
    skips = s == 1 and c == o

    def call(self, x):
        y = self.wide(x)
        y = self.narrow(y * self.weight(y))
        return x + y if skips else y

    return Fn(call, wide=wide, weight=weight, narrow=narrow)


def mbconv():
    """Six blocks."""
    layers, c = [Same(3, 16, 3, 2, bias=False), nn.BatchNorm2d(16), nn.SiLU()], 16
    for o, k, s in ((24, 3, 2), (24, 3, 1), (40, 5, 2), (40, 5, 1), (80, 3, 2), (80, 3, 1)):
        layers.append(mb_block(c, o, k, s))
        c = o
    return Seq(*layers, nn.Conv2d(80, 256, 1, bias=False), nn.BatchNorm2d(256), nn.SiLU(), mean(2, 3), nn.Linear(256, 10))


def attention(d, heads, causal):
    """Of each step to the others, or to those before it."""

    def call(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(b, n, d))

    return Fn(call, qkv=nn.Linear(d, 3 * d), out=nn.Linear(d, d))


def block(d, heads, eps, causal=False):
    """Attention and two dense layers, normalised before each."""
    a = Seq(nn.LayerNorm(d, eps), attention(d, heads, causal))
    b = Seq(nn.LayerNorm(d, eps), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def call(self, x):
        x = x + self.a(x)
        return x + self.b(x)

    return Fn(call, a=a, b=b)


def vit():
    """Four layers over patches."""
    patches = [nn.Conv2d(3, 192, 8, 8), Fn(lambda _, x: x.flatten(2).transpose(1, 2))]
    return Seq(*patches, *(block(192, 3, 1e-6) for _ in range(4)), nn.LayerNorm(192, 1e-6), mean(1), nn.Linear(192, 10))


def gpt():
    """Four causal layers over tokens."""
    blocks = (block(256, 4, 1e-5, True) for _ in range(4))
    return Seq(nn.Embedding(8000, 256), *blocks, nn.LayerNorm(256, 1e-5), nn.Linear(256, 8000))


def packed(recurrent, embedding):
    """Rows without their padding."""

    def call(self, x):
        lengths = (x != 0).sum(1)
        rows = nn.utils.rnn.pack_padded_sequence(self.embedding(x), lengths, batch_first=True, enforce_sorted=False)
        return self.recurrent(rows)

    return Fn(call, recurrent=recurrent, embedding=embedding)


def bigru():
    """The last states of both directions."""
    states = packed(nn.GRU(64, 64, batch_first=True, bidirectional=True), nn.Embedding(10000, 64))
    return Fn(lambda self, x: self.out(torch.cat(tuple(self.states(x)[1]), 1)), states=states, out=nn.Linear(128, 1))


def lstmseq():
    """Every step's state."""

    def call(self, x):
        steps, _ = self.states(x)
        return self.out(nn.utils.rnn.pad_packed_sequence(steps, batch_first=True, total_length=x.shape[1])[0])

    return Fn(call, states=packed(nn.LSTM(64, 128, batch_first=True), nn.Embedding(5000, 64)), out=nn.Linear(128, 20))


def bilstm():
    """Every step's states of both directions, then the last ones."""
    first, second = (nn.LSTM(i, 64, batch_first=True, bidirectional=True) for i in (8, 128))
    call = lambda self, x: self.out(torch.cat(tuple(self.second(self.first(x)[0])[1][0]), 1))  # noqa: E731
    return Fn(call, first=first, second=second, out=nn.Linear(128, 10))


def simplernn():
    """The last state."""
    return Fn(lambda self, x: self.out(self.states(x)[0][:, -1]), states=nn.RNN(32, 128, batch_first=True), out=nn.Linear(128, 10))


def audio():
    """Three convolutions of samples."""
    layers = [swap()]
    for i, o in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv1d(i, o, 9, padding=4, bias=False), nn.BatchNorm1d(o), ReLU(), nn.MaxPool1d(4)]
    return Seq(*layers, mean(2), nn.Linear(64, 10))


def textavg():
    """Means of embeddings."""
    return Seq(nn.EmbeddingBag(20000, 64, mode="mean"), flat_dense(64, 16, 1))


def tabular():
    """Three normalised layers."""
    layers = []
    for i in (64, 512, 512):
        layers += [nn.Linear(i, 512), nn.BatchNorm1d(512), ReLU(), nn.Dropout(0.3)]
    return Seq(*layers, nn.Linear(512, 1))


def convlstm():
    """The last state of images."""

    def call(self, x):
        state = cell = x.new_zeros(x.shape[0], 16, *x.shape[3:])
        for frame in x.unbind(2):
            i, f, g, o = self.gates(torch.cat([frame, state], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return self.out(state).permute(0, 2, 3, 1)

    return Fn(call, gates=Same(17, 64), out=Same(16, 1))


def gncnn():
    """Five convolutions, normalised by groups."""
    layers = []
    for i, o, s in ((3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [Same(i, o, 3, s, bias=False), nn.GroupNorm(8, o), ReLU()]
    return Seq(*layers, mean(2, 3), nn.Linear(128, 10))


def grown(c):
    """The channels, and twelve more."""
    more = Seq(nn.BatchNorm2d(c), ReLU(), Same(c, 12, bias=False))
    return Fn(lambda self, x: torch.cat([x, self.more(x)], 1), more=more)


def densenet():
    """Two blocks of six layers."""
    between = [nn.BatchNorm2d(96), ReLU(), nn.Conv2d(96, 48, 1, bias=False), nn.AvgPool2d(2)]
    first, second = ([grown(c + 12 * k) for k in range(6)] for c in (24, 48))
    return Seq(Same(3, 24, bias=False), *first, *between, *second, nn.BatchNorm2d(120), ReLU(), mean(2, 3), nn.Linear(120, 10))


def conv3d():
    """Three convolutions of volumes."""
    layers = [layer for i, o in ((1, 16), (16, 32), (32, 64)) for layer in (nn.Conv3d(i, o, 3, padding=1), ReLU(), nn.MaxPool3d(2))]
    return Seq(*layers, mean(2, 3, 4), nn.Linear(64, 10))


def recommender():
    """Two embeddings."""

    def call(self, users, items):
        return self.dense(torch.cat([self.users(users)[:, 0], self.items(items)[:, 0]], 1))

    return Fn(call, users=nn.Embedding(10000, 32), items=nn.Embedding(5000, 32), dense=flat_dense(64, 64, 32, 1))


def dcgan():
    """Pictures of numbers."""
    layers = [nn.Linear(64, 2048, bias=False), Fn(lambda _, x: x.view(-1, 128, 4, 4).contiguous(memory_format=torch.channels_last))]
    for i, o in ((128, 64), (64, 32)):
        layers += [nn.BatchNorm2d(i), ReLU(), nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False)]
    return Seq(*layers, nn.BatchNorm2d(32), ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh(), last())


def lenet():
    """Two convolutions and three dense layers."""
    images = [nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
    return Seq(*images, nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))


def separable(i, o):
    """By channel, then across them."""
    return Seq(ReLU(), Same(i, i, groups=i, bias=False), nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o))


def xception_block(i, o):
    """Two of these, pooled, and a shortcut."""
    short = Seq(nn.Conv2d(i, o, 1, 2, bias=False), nn.BatchNorm2d(o))
    deep = Seq(separable(i, o), separable(o, o), nn.MaxPool2d(3, 2, 1))
    return Fn(lambda self, x: self.deep(x) + self.short(x), short=short, deep=deep)


def xception():
    """Two blocks."""
    first = [Same(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32), ReLU()]
    return Seq(*first, xception_block(32, 64), xception_block(64, 128), mean(2, 3), nn.Linear(128, 10))


def upsample():
    """Two halvings and two doublings."""
    halved = [Same(3, 16, 3, 2), ReLU(), Same(16, 32, 3, 2), ReLU()]
    doubled = [layer for o in (32, 16) for layer in (nn.Upsample(scale_factor=2, mode="bilinear"), Same(32, o), ReLU())]
    return Seq(*halved, *doubled, Same(16, 3), nn.Sigmoid(), last())


def wavenet():
    """Six gated layers."""
    gated = nn.ModuleList(
        nn.ModuleList([nn.Conv1d(32, 32, 2, dilation=2**k), nn.Conv1d(32, 32, 2, dilation=2**k), nn.Conv1d(32, 32, 1)]) for k in range(6)
    )

    def call(self, x):
        x, skips = self.first(x.transpose(1, 2)), 0
        for k, (value, gate, out) in enumerate(self.gated):
            padded = F.pad(x, (2**k, 0))
            y = out(torch.tanh(value(padded)) * torch.sigmoid(gate(padded)))
            x, skips = x + y, skips + y
        return self.out(F.relu(skips)).transpose(1, 2)

    return Fn(call, first=nn.Conv1d(16, 32, 1), gated=gated, out=nn.Conv1d(32, 64, 1))


def dropcnn():
    """Three convolutions with dropout."""
    layers = []
    for i, o in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(i, o, 3), ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2)]
    return Seq(*layers, nn.Flatten(), nn.Linear(2304, 128), ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))


def autoencoder():
    """Six dense layers."""
    return flat_dense(784, 512, 128, 32, 128, 512, 784)


BUILDERS = [
    UNet, convnext, mbconv, vit, gpt, bigru, audio, textavg, tabular, autoencoder, gncnn, densenet, conv3d, lstmseq, simplernn,
    recommender, dcgan, lenet, xception, upsample, wavenet, bilstm, dropcnn, convlstm,
]


def trainer(asked, network, called, xs, y):
    """Forward, backward and update; the loss."""
    optimizers = {"adam": lambda p: torch.optim.Adam(p, 1e-3), "adamw": lambda p: torch.optim.AdamW(p, 1e-3)}
    optimizer = optimizers.get(asked.optimizer, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9))(network.parameters())

    def classes(out):
        return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.long().flatten())

    losses = {"binary": lambda out: F.binary_cross_entropy_with_logits(out, y), "squares": lambda out: F.mse_loss(out, y)}
    loss_of = losses.get(asked.loss, classes)

    def step():
        optimizer.zero_grad()
        loss = loss_of(called(*xs))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def forward(called, xs):
    """The outputs, without what a gradient needs."""

    @torch.inference_mode()
    def step():
        return called(*xs).contiguous().numpy().flat[0].item()

    return step


def channels_last(network, xs):
    """The network and its inputs in the channels-last format: views of what is there already."""
    rank = xs[0].ndim
    if rank > 3:
        xs = [x.permute(0, rank - 1, *range(1, rank - 1)) for x in xs]
    # The weights say which format it is: a recurrent layer convolves images, and its input is of rank 5.
    ranks = {parameter.ndim for parameter in network.parameters()}
    if 5 in ranks:
        return network.to(memory_format=torch.channels_last_3d), xs
    return network.to(memory_format=torch.channels_last) if 4 in ranks else network, xs


def main():
    """Serves steps."""
    asked = breadth.arguments()
    builders = {builder.__name__.lower(): builder for builder in BUILDERS}
    xs = [torch.from_numpy(x) for x in breadth.inputs(asked)]
    xs = [x.long() if x.dtype == torch.int32 else x for x in xs]
    network, xs = channels_last(builders[asked.model]().train(asked.work == "train"), xs)
    called = torch.compile(network) if asked.variant == "compiled" else network
    if asked.work == "train":
        step = trainer(asked, network, called, xs, torch.from_numpy(breadth.target(asked)))
    else:
        step = forward(called, xs)
    breadth.serve("torch", torch.__version__, asked.variant, step)


if __name__ == "__main__":
    main()
