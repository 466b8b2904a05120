//! Whether the replicas still have the same variables.

use phalanx_graph::{DType, Graph, Shape, Tensor};

use super::run::{State, slices};
use super::step::Setup;
use crate::engine::Compiled;
use crate::replicas::Placement;
use crate::{Error, Result};

/// Compares what the replicas have: a number for each array is computed where it is, and the numbers are compared.
pub(super) struct Verifier {
    compiled: Compiled,
    names: Vec<String>,
}

impl Verifier {
    /// For the arrays of this setup.
    pub(super) fn new(placement: &Placement, setup: &Setup) -> Result<Self> {
        let graph = Graph::with_replicas(placement.replicas());
        let arrays = setup.arrays();
        let sums: Vec<Tensor> = arrays
            .iter()
            .map(|(name, shape)| checksum(&graph.parameter(name, shape.clone())))
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
    pub(super) fn verify(&self, placement: &Placement, state: &State, steps: i64) -> Result<()> {
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

/// The bits of all elements, each times an odd number of its own, added modulo 2^32: a `u32[1]`.
fn checksum(array: &Tensor) -> Tensor {
    let bits = match array.dtype() {
        DType::F32 => array.bitcast(DType::U32),
        dtype if dtype.is_float() => array.convert(DType::F32).bitcast(DType::U32),
        _ => array.convert(DType::U32),
    };
    let bits = bits.reshape(&[array.shape().len()]);
    let place = array.graph().iota(bits.shape(), 0);
    (bits * (place * 2.0 + 1.0)).sum(&[0]).reshape(&[1])
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;
    use crate::data::Batch;
    use crate::engine::{Engine, EngineOptions};
    use crate::fit::{Compile, Trainer};
    use crate::losses::MeanSquaredError;
    use crate::nn::{Dense, IntoModel, Sequential};

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
