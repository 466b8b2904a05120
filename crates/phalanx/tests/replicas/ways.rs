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

/// A tenth of all ways for a case by its number; another tenth for the next one.
pub(crate) fn tenth(tenth: usize, case: usize) -> Vec<Way> {
    let ways = all().into_iter().enumerate();
    let chosen = ways.filter(|(place, _)| (place + 3 * case) % 10 == tenth);
    chosen.map(|(_, way)| way).collect()
}

/// The ways of a case by its number among all: every strategy in f32, with reductions in turn, and each narrow wire with
/// a strategy and a reduction in turn.
pub(crate) fn covering(case: usize) -> Vec<Way> {
    let mut ways: Vec<Way> = PLACES.map(Way::of).to_vec();
    let mut reducing: Vec<&mut Way> = ways.iter_mut().filter(|way| way.place.reduces()).collect();
    for (turn, way) in reducing.iter_mut().enumerate() {
        way.ops = OPS[(case + turn) % OPS.len()];
    }
    let places: Vec<Place> = reducing.iter().map(|way| way.place).collect();
    let narrow = WIRES[1..].iter().enumerate().map(|(turn, &wire)| Way {
        place: places[(case + turn) % places.len()],
        ops: OPS[(case + turn) % OPS.len()],
        wire,
    });
    ways.extend(narrow.collect::<Vec<_>>());
    ways
}

/// The same for a case that loses nothing on a narrow wire: four replicas with every reduction and every wire as well.
pub(crate) fn exact(case: usize) -> Vec<Way> {
    let four = all().into_iter();
    let four = four.filter(|way| way.place == Place::Mirrored(4));
    covering(case).into_iter().chain(four).collect()
}

/// Every two of case, strategy, reduction and wire format are somewhere together.
#[test]
fn the_table_has_every_pair() {
    let all = crate::cases::all();
    let cases: Vec<usize> = (0..all.len()).collect();
    let planned: Vec<(usize, Way)> = (cases.iter())
        .flat_map(|&case| covering(case).into_iter().map(move |way| (case, way)))
        .collect();
    let has =
        |what: &dyn Fn(usize, &Way) -> bool| planned.iter().any(|(case, way)| what(*case, way));
    for case in cases {
        for place in PLACES {
            let found =
                has(&|c, way| c == case && way.place == place && way.wire == WireFormat::Same);
            assert!(found, "case {case}, {place:?}, at full precision");
        }
        for ops in OPS {
            assert!(
                has(&|c, way| c == case && way.place.reduces() && way.ops == ops),
                "case {case}, {ops:?}"
            );
        }
        for wire in WIRES {
            assert!(
                has(&|c, way| c == case && way.wire == wire),
                "case {case}, {wire:?}"
            );
        }
    }
    for place in PLACES.into_iter().filter(|place| place.reduces()) {
        for ops in OPS {
            assert!(
                has(&|_, way| way.place == place && way.ops == ops),
                "{place:?}, {ops:?}"
            );
        }
        for wire in WIRES {
            assert!(
                has(&|_, way| way.place == place && way.wire == wire),
                "{place:?}, {wire:?}"
            );
        }
    }
    for ops in OPS {
        for wire in WIRES {
            assert!(
                has(&|_, way| way.place.reduces() && way.ops == ops && way.wire == wire),
                "{ops:?}, {wire:?}"
            );
        }
    }
}
