//! How a case is trained: every strategy, reduction and wire format, and which of them with which case.

use phalanx::engine::Engine;
use phalanx::prelude::*;
use phalanx::replicas::{CrossDeviceOps, Reduction, WireFormat};

use crate::names;

/// A strategy with the devices it is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    OneDevice,
    /// So many replicas.
    Mirrored(usize),
    /// Three replicas, which take 3, 1 and 2 parts of each batch.
    Shares,
    /// So many replicas that compute, and a device that has the variables.
    Central(usize),
    /// So many places along the axis of the data and along that of the model.
    Mesh(usize, usize),
    /// So many stages.
    Pipeline(usize),
}

pub(crate) const PLACES: [Place; 10] = [
    Place::OneDevice,
    Place::Mirrored(1),
    Place::Mirrored(2),
    Place::Mirrored(3),
    Place::Mirrored(4),
    Place::Shares,
    Place::Central(3),
    Place::Mesh(2, 1),
    Place::Mesh(2, 2),
    Place::Pipeline(2),
];

pub(crate) const OPS: [CrossDeviceOps; 3] = [
    CrossDeviceOps::AllReduce,
    CrossDeviceOps::HierarchicalCopyAllReduce,
    CrossDeviceOps::ReductionToOneDevice,
];

pub(crate) const WIRES: [WireFormat; 3] = [WireFormat::Same, WireFormat::Bf16, WireFormat::F16];

impl Place {
    /// Whether there are gradients of several replicas to add.
    pub(crate) const fn reduces(self) -> bool {
        match self {
            Self::Mirrored(replicas) | Self::Central(replicas) => replicas > 1,
            Self::Shares => true,
            Self::OneDevice | Self::Mesh(..) | Self::Pipeline(_) => false,
        }
    }
}

/// A strategy, and how it adds gradients if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) place: Place,
    pub(crate) ops: CrossDeviceOps,
    pub(crate) wire: WireFormat,
}

impl Way {
    pub(crate) fn of(place: Place) -> Self {
        Self {
            place,
            ops: CrossDeviceOps::AllReduce,
            wire: WireFormat::Same,
        }
    }

    /// The strategy, with packs of so many bytes, and batches of a pipeline in so many parts.
    pub(crate) fn strategy(
        &self,
        engine: &Engine,
        micro_batches: usize,
        bytes_per_pack: usize,
    ) -> Box<dyn Strategy> {
        let reduction = Reduction::new()
            .cross_device_ops(self.ops)
            .wire(self.wire)
            .bytes_per_pack(bytes_per_pack);
        let mirrored = |replicas| {
            let strategy = MirroredStrategy::on(engine).devices(names(replicas));
            strategy.unwrap().reduction(reduction.clone())
        };
        match self.place {
            Place::OneDevice => Box::new(OneDeviceStrategy::on(engine)),
            Place::Mirrored(replicas) => Box::new(mirrored(replicas)),
            Place::Shares => Box::new(mirrored(3).shares(&[3, 1, 2]).unwrap()),
            Place::Central(replicas) => {
                let strategy = CentralStorageStrategy::on(engine).parameter_device("cpu:3");
                let strategy = strategy.unwrap().compute_devices(names(replicas));
                Box::new(strategy.unwrap().reduction(reduction))
            }
            Place::Mesh(data, model) => {
                Box::new(MeshStrategy::on(engine, &mesh(data, model)).unwrap())
            }
            Place::Pipeline(stages) => {
                Box::new(PipelineStrategy::on(engine, stages, micro_batches).unwrap())
            }
        }
    }
}

fn mesh(data: usize, model: usize) -> Mesh {
    Mesh::new([("data", data), ("model", model)])
}

/// All ways there are.
pub(crate) fn all() -> Vec<Way> {
    let mut ways = Vec::new();
    for place in PLACES {
        if !place.reduces() {
            ways.push(Way::of(place));
            continue;
        }
        for ops in OPS {
            ways.extend(WIRES.map(|wire| Way { place, ops, wire }));
        }
    }
    ways
}

/// What a run of the tests trains of all cases in all ways.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// Everything: `PHALANX_TEST_WHOLE_TABLE`.
    Whole,
    /// The tenth with this number: `PHALANX_TEST_TENTH`.
    Tenth(usize),
    /// The tenth that the commit with this number chooses, a sixth of it of cases that are slow, and most of them compiled
    /// without the compiler's last care: another commit chooses others.
    Commit(usize),
}

impl Choice {
    pub(crate) fn of_environment() -> Self {
        let tenth = std::env::var("PHALANX_TEST_TENTH").ok();
        match tenth {
            _ if std::env::var_os("PHALANX_TEST_WHOLE_TABLE").is_some() => Self::Whole,
            Some(tenth) => Self::Tenth(tenth.parse().unwrap()),
            // Outside a repository it is always the same.
            None => Self::Commit(phalanx_testkit::commit_number().unwrap_or(0) as usize),
        }
    }

    /// Whether the case with this number among all is compiled without the compiler's last care.
    pub(crate) const fn is_quick(self, case: usize) -> bool {
        match self {
            Self::Whole | Self::Tenth(_) => false,
            // Whatever a tenth has, within forty commits all of it is careful once.
            Self::Commit(commit) => !(case + commit / 10).is_multiple_of(4),
        }
    }

    /// The ways of the case with this number among all.
    pub(crate) fn ways(self, case: usize, is_slow: bool) -> Vec<Way> {
        match self {
            Self::Whole => all(),
            Self::Tenth(number) => tenth(number, case),
            Self::Commit(commit) => {
                let (number, sixth) = (commit % 10, commit / 10 % 6);
                let ways = tenth(number, case).into_iter().enumerate();
                let chosen = ways.filter(|(turn, _)| !is_slow || turn % 6 == sixth);
                chosen.map(|(_, way)| way).collect()
            }
        }
    }
}

/// A tenth of all ways for a case by its number; another tenth for the next one.
fn tenth(tenth: usize, case: usize) -> Vec<Way> {
    let ways = all().into_iter().enumerate();
    let chosen = ways.filter(|(place, _)| (place + 3 * case) % 10 == tenth);
    chosen.map(|(_, way)| way).collect()
}

/// Sixty commits in a row train every case in every way, forty with all care but those that are slow, and each of them trains every strategy, and every reduction with
/// every wire format, with some case.
#[test]
fn commits_in_turn_train_everything() {
    let cases = crate::cases::all();
    for (number, case) in cases.iter().enumerate() {
        let of_commit = |commit| Choice::Commit(commit).ways(number, case.is_slow);
        let trained: Vec<Way> = (0..60).flat_map(of_commit).collect();
        let is_left = |way: &Way| !trained.contains(way);
        assert_eq!(all().into_iter().find(is_left), None, "{}", case.name);
        let careful = (0..40).filter(|&commit| !Choice::Commit(commit).is_quick(number));
        let careful: Vec<Way> = careful.flat_map(of_commit).collect();
        let is_left = |way: &Way| !careful.contains(way) && !case.is_slow;
        assert_eq!(all().into_iter().find(is_left), None, "{}", case.name);
    }
    for commit in 0..60 {
        let numbered = cases.iter().enumerate();
        let trained: Vec<Way> = numbered
            .flat_map(|(number, case)| Choice::Commit(commit).ways(number, case.is_slow))
            .collect();
        let has = |what: &dyn Fn(&Way) -> bool| trained.iter().any(what);
        for place in PLACES {
            assert!(has(&|way| way.place == place), "{commit}: {place:?}");
        }
        for (ops, wire) in OPS.iter().flat_map(|ops| WIRES.map(|wire| (ops, wire))) {
            let meet = |way: &Way| way.place.reduces() && way.ops == *ops && way.wire == wire;
            assert!(has(&meet), "{commit}: {ops:?}, {wire:?}");
        }
    }
}
