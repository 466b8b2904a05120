//! Buffers of a run, and their copies on the devices that need them.

use std::cell::RefCell;
use std::rc::Rc;

use phalanx_graph::Shape;
use phalanx_pjrt::Buffer;

use super::DeviceId;
use crate::engine::Engine;
use crate::{Error, Result};

/// A buffer that a run made, or that it borrowed for its time.
pub(super) enum StageBuffer<'a> {
    Owned(Buffer),
    Borrowed(&'a Buffer),
}

impl StageBuffer<'_> {
    pub(super) const fn buffer(&self) -> &Buffer {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Borrowed(buffer) => buffer,
        }
    }
}

/// One value on the devices that have it; a device that needs it gets a copy once.
#[derive(Clone)]
pub(super) struct Copies<'a>(Rc<RefCell<Vec<DeviceCopy<'a>>>>);

type DeviceCopy<'a> = (DeviceId, Rc<StageBuffer<'a>>);

impl<'a> Copies<'a> {
    /// A value that one device has.
    pub(super) fn on_one(device: DeviceId, buffer: StageBuffer<'a>) -> Self {
        Self(Rc::new(RefCell::new(vec![(device, Rc::new(buffer))])))
    }

    /// The value on a device, copied there when it is not.
    pub(super) fn on_device(
        &self,
        engine: &Engine,
        shape: &Shape,
        device: DeviceId,
    ) -> Result<Rc<StageBuffer<'a>>> {
        let mut copies = self.0.borrow_mut();
        if let Some((_, buffer)) = copies.iter().find(|(other, _)| *other == device) {
            return Ok(Rc::clone(buffer));
        }
        let copy = engine.copy(engine, copies[0].1.buffer(), shape, device.0)?;
        let copy = Rc::new(StageBuffer::Owned(copy));
        copies.push((device, Rc::clone(&copy)));
        Ok(copy)
    }

    /// The buffer of a value that nobody else holds any more.
    pub(super) fn into_buffer(self) -> Result<Buffer> {
        let shared = || Error::Bug("a result of a stage is still in use".into());
        self.try_into_buffer().map_err(|_| shared())
    }

    /// The buffer of a value; a copy where it was borrowed or others hold it.
    pub(super) fn into_own(self, engine: &Engine, shape: &Shape) -> Result<Buffer> {
        match self.try_into_buffer() {
            Ok(buffer) => Ok(buffer),
            Err(shared) => {
                let copies = shared.0.borrow();
                let (device, buffer) = &copies[0];
                engine.copy(engine, buffer.buffer(), shape, device.0)
            }
        }
    }

    fn try_into_buffer(self) -> std::result::Result<Buffer, Self> {
        let mut list = Rc::try_unwrap(self.0).map_err(Self)?.into_inner();
        let (device, first) = list.swap_remove(0);
        match Rc::try_unwrap(first) {
            Ok(StageBuffer::Owned(buffer)) => Ok(buffer),
            Ok(borrowed) => Err(Self::on_one(device, borrowed)),
            Err(first) => Err(Self(Rc::new(RefCell::new(vec![(device, first)])))),
        }
    }
}
