//! `from_images`: encoded images as examples, decoded and augmented straight into the batch.

use std::sync::{Mutex, PoisonError};

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};

use super::Stage;
use crate::Result;
use crate::data::agreement::of_some;
use crate::data::buffer_pool::BufferPool;
use crate::data::formats::placed;
use crate::data::random_key::random_key;
use crate::data::{Batch, Dataset, EncodedImage, Example, LostBytes, Records};
use crate::image::{ImagePipeline, ImageProcessor};

/// Images in the form of their files, and what is made of them.
struct Images {
    encoded: Box<dyn Records<Item = EncodedImage>>,
    pipeline: ImagePipeline,
    seed: u64,
    /// Memory of threads that are not at work.
    processors: Mutex<Vec<ImageProcessor>>,
    buffer_pool: BufferPool,
}

impl Dataset {
    /// Images in the form of their files, each made an f32 example `[height, width, channels]` with its class as an i32
    /// scalar; what is random in the pipeline is drawn from (seed, epoch, index of the image).
    ///
    /// # Errors
    /// When a number of the pipeline makes no sense.
    pub fn from_images(
        images: impl Records<Item = EncodedImage>,
        pipeline: &ImagePipeline,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self::of(Images::new(images, pipeline, seed)?))
    }
}

impl Stage for Images {
    fn inputs(&self) -> &[Dataset] {
        &[]
    }

    fn computes(&self) -> bool {
        true
    }

    fn len(&self) -> Option<usize> {
        Some(self.encoded.len())
    }

    fn read(&self, epoch: u64, i: usize, _count: u64) -> Result<Option<Example>> {
        self.get(epoch, i).map(Some)
    }

    fn gather(&self, epoch: u64, indices: &[usize], _pool: &BufferPool) -> Result<Batch> {
        self.gather_images(epoch, indices)
    }

    fn contents(&self) -> u32 {
        of_some(self.encoded.len(), |sum, i| {
            let image = self.encoded.get(i)?;
            let sum = crc32c::crc32c_append(sum, &image.class.to_le_bytes());
            Ok(crc32c::crc32c_append(sum, &image.bytes))
        })
    }

    fn per_file(&self) -> Option<Vec<usize>> {
        Some(self.encoded.per_file())
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.encoded.lost()
    }
}

impl Images {
    fn new(
        encoded: impl Records<Item = EncodedImage>,
        pipeline: &ImagePipeline,
        seed: u64,
    ) -> Result<Self> {
        pipeline.check()?;
        Ok(Self {
            encoded: Box::new(encoded),
            pipeline: pipeline.clone(),
            seed,
            processors: Mutex::default(),
            buffer_pool: BufferPool::default(),
        })
    }

    fn get(&self, epoch: u64, i: usize) -> Result<Example> {
        let shape = Shape::new(DType::F32, self.pipeline.dims());
        let mut bytes = AlignedBytes::zeroed(shape.byte_len());
        let class = self.with_processor(|processor| {
            self.process(processor, (epoch, i), bytes.as_mut_slice())
        })?;
        Ok(Example {
            x: vec![HostTensor::from_aligned(shape, bytes)],
            y: vec![HostTensor::scalar(class)],
            weight: None,
        })
    }

    fn gather_images(&self, epoch: u64, indices: &[usize]) -> Result<Batch> {
        let dims = [&[indices.len()], &self.pipeline.dims()[..]].concat();
        let shape = Shape::new(DType::F32, dims);
        let mut bytes = self.buffer_pool.take(shape.byte_len());
        let row = shape.byte_len() / indices.len().max(1);
        let classes = self.with_processor(|processor| {
            let rows = bytes.as_mut_slice().chunks_exact_mut(row.max(1));
            let each = rows.zip(indices);
            each.map(|(row, &i)| self.process(processor, (epoch, i), row))
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

    fn process(
        &self,
        processor: &mut ImageProcessor,
        (epoch, i): (u64, usize),
        row: &mut [u8],
    ) -> Result<i32> {
        let image = self.encoded.get(i)?;
        let key = random_key(self.seed, epoch, i as u64);
        processor
            .make(&self.pipeline, &image.bytes, key, row)
            .map_err(|error| placed(&*self.encoded, i, error))?;
        Ok(image.class as i32)
    }

    fn with_processor<T>(&self, work: impl FnOnce(&mut ImageProcessor) -> T) -> T {
        let processors = || {
            self.processors
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let processor = processors().pop();
        let mut processor = processor.unwrap_or_else(|| ImageProcessor::new(&self.pipeline));
        let done = work(&mut processor);
        processors().push(processor);
        done
    }
}
