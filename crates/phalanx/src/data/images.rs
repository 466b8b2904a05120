//! Images of files as examples, written straight into the batch.

use std::sync::{Mutex, PoisonError};

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};

use super::buffer_pool::BufferPool;
use super::formats::placed;
use super::order::key_of;
use super::{Batch, EncodedImage, Example, LostBytes, Records};
use crate::Result;
use crate::image::{ImagePipeline, ImageProcessor};

/// Images in the form of their files, and what is made of them.
pub(super) struct Images {
    encoded: Box<dyn Records<Item = EncodedImage>>,
    plan: ImagePipeline,
    seed: u64,
    /// Memory of threads that are not at work.
    makers: Mutex<Vec<ImageProcessor>>,
    buffer_pool: BufferPool,
}

impl Images {
    pub(super) fn new(
        encoded: impl Records<Item = EncodedImage>,
        plan: &ImagePipeline,
        seed: u64,
    ) -> Result<Self> {
        plan.check()?;
        Ok(Self {
            encoded: Box::new(encoded),
            plan: plan.clone(),
            seed,
            makers: Mutex::default(),
            buffer_pool: BufferPool::default(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.encoded.len()
    }

    pub(super) fn per_file(&self) -> Vec<usize> {
        self.encoded.per_file()
    }

    pub(super) fn lost(&self) -> Vec<LostBytes> {
        self.encoded.lost()
    }

    pub(super) fn get(&self, epoch: u64, i: usize) -> Result<Example> {
        let shape = Shape::new(DType::F32, self.plan.dims());
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        let class = self.with_maker(|maker| self.make(maker, (epoch, i), bytes.as_mut_slice()))?;
        Ok(Example {
            x: vec![HostTensor::from_aligned(shape, bytes)],
            y: vec![HostTensor::scalar(class)],
            weight: None,
        })
    }

    pub(super) fn gather(&self, epoch: u64, indices: &[usize]) -> Result<Batch> {
        let dims = [&[indices.len()], &self.plan.dims()[..]].concat();
        let shape = Shape::new(DType::F32, dims);
        let mut bytes = self.buffer_pool.take(shape.byte_len());
        let row = shape.byte_len() / indices.len().max(1);
        let classes = self.with_maker(|maker| {
            let rows = bytes.as_mut_slice().chunks_exact_mut(row.max(1));
            let each = rows.zip(indices);
            each.map(|(row, &i)| self.make(maker, (epoch, i), row))
                .collect::<Result<Vec<i32>>>()
        })?;
        let x = HostTensor::from_aligned(shape, bytes);
        self.buffer_pool.lend(&x);
        Ok(Batch {
            x: vec![x],
            y: vec![HostTensor::new([classes.len()], &classes)],
            weight: None,
            first: 0,
        })
    }

    fn make(
        &self,
        maker: &mut ImageProcessor,
        (epoch, i): (u64, usize),
        row: &mut [u8],
    ) -> Result<i32> {
        let image = self.encoded.get(i)?;
        let key = key_of(self.seed, epoch, i as u64);
        maker
            .make(&self.plan, &image.bytes, key, row)
            .map_err(|error| placed(&*self.encoded, i, error))?;
        Ok(image.class as i32)
    }

    fn with_maker<T>(&self, work: impl FnOnce(&mut ImageProcessor) -> T) -> T {
        let makers = || self.makers.lock().unwrap_or_else(PoisonError::into_inner);
        let maker = makers().pop();
        let mut maker = maker.unwrap_or_else(|| ImageProcessor::new(&self.plan));
        let done = work(&mut maker);
        makers().push(maker);
        done
    }
}
