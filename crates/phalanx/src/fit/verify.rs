//! The check that all replicas still have the same variables.

use phalanx_graph::{DType, Graph, Shape, Tensor};

use super::setup::Setup;
use super::train_state::{TrainState, slices};
use crate::engine::Compiled;
use crate::replicas::Placement;
use crate::{Error, Result};

/// Compares the arrays of the replicas by a checksum of each, computed on its device.
pub(super) struct ReplicaVerifier {
    compiled: Compiled,
    names: Vec<String>,
}

impl ReplicaVerifier {
    /// For the arrays of this setup.
    pub(super) fn new(placement: &Placement, setup: &Setup) -> Result<Self> {
        let graph = Graph::with_replicas(placement.local_replicas());
        let arrays = setup.state.arrays();
        let local_sums = setup.local_sums();
        let sums: Vec<Tensor> = (arrays.iter().enumerate())
            .map(|(index, (name, shape))| {
                let array = graph.parameter(name, shape.clone());
                match local_sums.contains(&index) {
                    // Each replica has another part of it.
                    true => graph.full(&Shape::new(DType::U32, [1]), 0.0),
                    false => checksum(&array),
                }
            })
            .collect();
        let sums: Vec<&Tensor> = sums.iter().collect();
        let program = graph.finish(&[("checksums", &Tensor::concat(&sums, 0))])?;
        Ok(Self {
            compiled: placement.compile("verify", &program)?,
            names: arrays.into_iter().map(|(name, _)| name).collect(),
        })
    }

    /// Waits for the steps begun, of which there were `steps`.
    ///
    /// # Errors
    /// [`Error::Training`] with the first array that differs.
    pub(super) fn verify(
        &self,
        placement: &Placement,
        state: &TrainState,
        steps: i64,
    ) -> Result<()> {
        let lists = state.lists()?;
        let (outputs, _) = self.compiled.run(&slices(&lists))?;
        let shape = Shape::new(DType::U32, [self.names.len()]);
        let read = |output: &Vec<_>| placement.engine().get(&output[0], &shape);
        let sums: Vec<_> = outputs.iter().map(read).collect::<Result<_>>()?;
        let first = sums[0].to_f64();
        for (replica, sums) in sums.iter().enumerate() {
            let differs = sums.to_f64().iter().zip(&first).position(|(a, b)| a != b);
            if let Some(array) = differs {
                return Err(Error::Training(format!(
                    "after {steps} steps replica {replica} ({}) has another `{}` than replica 0 ({}), though both began with the same and took the same steps; a device computes wrongly, or a custom operation differs between them: go on from the last checkpoint without that device",
                    placement.device_name(replica),
                    self.names[array],
                    placement.device_name(0),
                )));
            }
        }
        Ok(())
    }
}

/// The bits of all elements, in words, each times an odd number of its own, added modulo 2^32: a `u32[1]`.
///
/// Odd numbers have inverses, so one word that differs, in any of its bits, always changes the sum.
fn checksum(array: &Tensor) -> Tensor {
    let sums = words(array).into_iter().enumerate().map(|(word, bits)| {
        let bits = bits.reshape(&[array.shape().len()]);
        let place = array.graph().iota(bits.shape(), 0);
        let odd = place * 4.0 + (2.0 * word as f64 + 1.0);
        (bits * odd).sum(&[0]).reshape(&[1])
    });
    sums.reduce(|low, high| low + high)
        .unwrap_or_else(|| array.graph().full(&Shape::new(DType::U32, [1]), 0.0))
}

/// The bits of each element as `u32`, two of them where it has 64.
fn words(array: &Tensor) -> Vec<Tensor> {
    let wide = match array.dtype() {
        DType::F64 => array.bitcast(DType::I64),
        DType::I64 => array.clone(),
        DType::F32 | DType::I32 => return vec![array.bitcast(DType::U32)],
        // What is shorter fits.
        DType::Bf16 | DType::F16 => {
            return vec![array.convert(DType::F32).bitcast(DType::U32)];
        }
        DType::U32 | DType::U8 | DType::Bool => return vec![array.convert(DType::U32)],
    };
    let low = wide.and(&wide.like(f64::from(u32::MAX)));
    let high = wide.shift_right(&wide.like(32.0));
    vec![low.convert(DType::U32), high.convert(DType::U32)]
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;
    use crate::data::Batch;
    use crate::engine::{CompileRequest, Engine, EngineOptions};
    use crate::fit::{Compile, Trainer};
    use crate::losses::MeanSquaredError;
    use crate::nn::{Dense, IntoModel, Sequential};

    #[test]
    fn each_bit_of_each_element_counts() {
        let engine = Engine::cpu().unwrap();
        let f64s = |x: f64| HostTensor::new([2], &[1.0, x]);
        let i64s = |x: i64| HostTensor::new([2], &[-1, x]);
        let pairs = [
            (
                f64s(1.0 / 3.0),
                f64s(f64::from_bits((1.0f64 / 3.0).to_bits() ^ 1)),
            ),
            (f64s(0.0), f64s(-0.0)),
            (i64s(5), i64s(5 ^ (1 << 63))),
            (i64s(5), i64s(5 ^ (1 << 32))),
            (i64s(5), i64s(5 ^ (1 << 31))),
            (i64s(5), i64s(4)),
            (
                HostTensor::new([1], &[i32::MIN]),
                HostTensor::new([1], &[0i32]),
            ),
            (
                HostTensor::new([1], &[0.0f32]),
                HostTensor::new([1], &[-0.0f32]),
            ),
            (
                HostTensor::new([1], &[true]),
                HostTensor::new([1], &[false]),
            ),
        ];
        let graph = Graph::new();
        let sums: Vec<Tensor> = (pairs.iter().flat_map(|(a, b)| [a, b]))
            .map(|array| checksum(&graph.parameter("array", array.shape().clone())))
            .collect();
        let sums: Vec<&Tensor> = sums.iter().collect();
        let program = graph
            .finish(&[("sums", &Tensor::concat(&sums, 0))])
            .unwrap();
        let compiled = engine
            .compile(CompileRequest::new("checksums", &program))
            .unwrap();
        let arrays = pairs.iter().flat_map(|(a, b)| [a, b]);
        let arrays: Vec<_> = arrays.map(|array| engine.put(0, array).unwrap()).collect();
        let (outputs, _) = compiled.run(&[&arrays.iter().collect::<Vec<_>>()]).unwrap();
        let shape = Shape::new(DType::U32, [arrays.len()]);
        let sums = engine.get(&outputs[0][0], &shape).unwrap().to_f64();
        for (pair, sums) in pairs.iter().zip(sums.chunks(2)) {
            assert_ne!(sums[0], sums[1], "{pair:?}");
        }
    }

    #[test]
    fn a_replica_that_went_astray_is_named() {
        let engine = Engine::new(&EngineOptions {
            cpu_devices: 2,
            ..EngineOptions::default()
        })
        .unwrap();
        let placement = Placement::all(&engine).with_verification(2);
        let (model, _) = Sequential::new([2])
            .add(Dense::new(1))
            .into_parts()
            .unwrap();
        let compile = Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let mut trainer = Trainer::new(&placement, model, None, compile).unwrap();
        let batch = Batch {
            x: vec![HostTensor::new([2, 2], &[1.0_f32, 2.0, 3.0, 4.0])],
            y: vec![HostTensor::new([2, 1], &[1.0_f32, 2.0])],
            weight: None,
            first: 0,
        };
        trainer.train_on_batch(&batch).unwrap();
        trainer.train_on_batch(&batch).unwrap();
        let changed = HostTensor::new([1], &[0.25_f32]);
        trainer
            .compiled
            .state
            .lead_astray(1, 1, engine.put(1, &changed).unwrap());
        trainer.train_on_batch(&batch).unwrap();
        let error = trainer.train_on_batch(&batch).unwrap_err().to_string();
        assert!(
            error.starts_with(
                "after 4 steps replica 1 (cpu:1) has another `dense/bias` than replica 0 (cpu:0)"
            ),
            "{error}"
        );
    }
}
