//! What a workload has to reach.

/// What ours is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Against {
    /// The time of the fastest peer.
    Best,
    /// The time of a framework.
    Peer(&'static str),
    /// The work of one replica.
    OneReplica,
    /// The peak memory of a framework, of which ours takes at most a part.
    Memory(&'static str),
}

/// A bar: times as fast, times the work, or the part of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) against: Against,
    pub(super) limit: f64,
}

/// What of a processor names its family and decides bars.
#[derive(Debug, Default)]
pub(super) struct Processor {
    /// Its name, family, model and widest instructions.
    pub(super) family: String,
    has_amx: bool,
}

/// The bars of a workload on a processor.
pub(super) fn of(name: &str, batch: &str, processor: &Processor) -> Vec<Bar> {
    use Against::{Best, Memory, OneReplica, Peer};
    let bar = |against, limit| Bar { against, limit };
    let (torch, tf) = (Peer("torch"), Peer("tf"));
    let memory = [bar(Memory("torch"), 0.8), bar(Memory("tf"), 0.8)];
    let with_memory = |bars: [Bar; 2]| [bars, memory].concat();
    match name {
        "resnet50" => with_memory([bar(torch, 1.6), bar(tf, 1.6)]),
        "resnet50_bf16" if processor.has_amx => with_memory([bar(torch, 1.15), bar(tf, 2.0)]),
        "resnet50_bf16" => with_memory([bar(torch, 1.0), bar(tf, 1.5)]),
        "mobilenet_v2" => vec![bar(Best, 1.6)],
        "cnn" => vec![bar(Best, 1.4)],
        "transformer" | "transformer_bf16" => vec![bar(Best, 1.15)],
        "mlp" => vec![bar(Best, 1.3)],
        "fit_mlp" => vec![bar(Peer("jax"), 1.3), bar(torch, 1.5)],
        "replicas_mlp" if batch == "64" => vec![bar(OneReplica, 1.3)],
        "replicas_mlp" => vec![bar(OneReplica, 1.6)],
        "replicas_cnn" => vec![bar(OneReplica, 1.85)],
        "replicas_resnet50" => vec![bar(OneReplica, 1.9)],
        _ if name.starts_with("predict_") || name.starts_with("evaluate_") => {
            vec![bar(Best, 1.2)]
        }
        _ if name.starts_with("lstm_") || name.starts_with("gru_") => vec![bar(torch, 1.0)],
        _ => Vec::new(),
    }
}

impl Processor {
    pub(super) fn of_this_machine() -> Self {
        Self::described(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn described(cpuinfo: &str) -> Self {
        let field = |name: &str| {
            let of_line = |line: &str| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            };
            cpuinfo
                .lines()
                .find_map(of_line)
                .unwrap_or_else(|| "unknown".into())
        };
        let flags = field("flags");
        let has = |flag: &str| flags.split(' ').any(|word| word == flag);
        let widest = match () {
            () if has("amx_bf16") => "AVX-512, AMX",
            () if has("avx512_bf16") => "AVX-512, bf16",
            () if has("avx512f") => "AVX-512",
            () if has("avx2") => "AVX2",
            () => "no AVX2",
        };
        let [name, family, model] = ["model name", "cpu family", "model"].map(field);
        Self {
            family: format!("{name}, family {family} model {model} ({widest})"),
            has_amx: has("amx_bf16"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amx_raises_the_bar_of_bf16() {
        let text = "model name\t: X\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu avx2 avx512f";
        let without = Processor::described(text);
        assert_eq!(without.family, "X, family 6 model 143 (AVX-512)");
        let with = Processor::described(&format!("{text} avx512_bf16 amx_bf16 amx_tile"));
        assert_eq!(with.family, "X, family 6 model 143 (AVX-512, AMX)");
        let torch = |processor| of("resnet50_bf16", "16", processor)[0].limit;
        assert_eq!([torch(&without), torch(&with)], [1.0, 1.15]);
        assert!(of("vgg", "16", &with).is_empty());
    }
}
