//! Buffers: arrays on one device.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::{Client, ClientInner};
use crate::element::ElementType;
use crate::error::PjrtError;
use crate::event::Event;
use crate::plugin::slice;
use crate::sys::{self, Args};

/// Host memory shared with a plugin, which must not change while it is shared.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Alignment in bytes from which the CPU plugin uses host memory without a copy.
pub const ZERO_COPY_ALIGNMENT: usize = 64;

const ONLY_DURING_CALL: i32 = 0;
const IMMUTABLE_ZERO_COPY: i32 = 2;

/// An array on one device; dropping it frees the memory once the plugin has no more use for it.
///
/// A buffer that was donated to an execution is dead: each use of it fails with the plugin's "has been deleted or donated".
pub struct Buffer {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) raw: *mut sys::Buffer,
    /// Of what makes the contents: see [`ExecuteOptions::ends_soon`](crate::ExecuteOptions::ends_soon).
    pub(crate) ends_soon: bool,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Client {
    /// Copies host memory to a device; `device` is an index into [`Client::devices`], the layout is row-major.
    ///
    /// # Errors
    /// `bytes` has not the size of `element` times `dims`, `device` is out of range, or the plugin's own.
    pub fn buffer(
        &self,
        device: usize,
        element: ElementType,
        dims: &[i64],
        bytes: &[u8],
    ) -> Result<Buffer, PjrtError> {
        // SAFETY: with these semantics the plugin reads `bytes` only during the call.
        let (buffer, done) = unsafe {
            self.0
                .buffer_from_host(device, element, dims, bytes, ONLY_DURING_CALL)?
        };
        drop(done);
        Ok(buffer)
    }

    /// Makes a buffer of shared host memory without copying it where the plugin can (CPU, memory aligned to
    /// [`ZERO_COPY_ALIGNMENT`]); otherwise it is copied. The plugin's share of `bytes` is dropped when it is done with it.
    /// An execution that donates such a buffer copies it.
    ///
    /// # Errors
    /// As for [`Client::buffer`].
    pub fn buffer_shared(
        &self,
        device: usize,
        element: ElementType,
        dims: &[i64],
        bytes: SharedBytes,
    ) -> Result<Buffer, PjrtError> {
        // SAFETY: the box, and so the memory borrowed from it, lives until `done` fires: the callback owns it; if it cannot be
        // registered the box is leaked. Moving the box does not move what it points at. Nobody writes the bytes meanwhile: they are
        // lent by a reference that is held as long, whatever `as_ref` does, and the plugin only reads them.
        unsafe {
            let owner = Box::into_raw(Box::new(bytes));
            let made = self.0.buffer_from_host(
                device,
                element,
                dims,
                (**owner).as_ref(),
                IMMUTABLE_ZERO_COPY,
            );
            let Ok((buffer, done)) = made else {
                drop(Box::from_raw(owner));
                return made.map(|(buffer, _)| buffer);
            };
            let owner = Owner(owner);
            done.on_ready(move |_| owner.release())?;
            Ok(buffer)
        }
    }
}

/// Leaks unless released, so that memory in use by a plugin is never freed early.
struct Owner(*mut SharedBytes);
// SAFETY: the pointer is a unique box of a Send value.
unsafe impl Send for Owner {}

impl Owner {
    fn release(self) {
        // SAFETY: made by Box::into_raw, released once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl ClientInner {
    /// # Safety
    /// `bytes` stays alive and unchanged for as long as `semantics` says.
    unsafe fn buffer_from_host(
        self: &Arc<Self>,
        device: usize,
        element: ElementType,
        dims: &[i64],
        bytes: &[u8],
        semantics: i32,
    ) -> Result<(Buffer, Event), PjrtError> {
        let mut args = sys::BufferFromHost {
            client: self.raw,
            data: bytes.as_ptr().cast(),
            element_type: element.to_pjrt(),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            semantics,
            device: self.device(device, sys::BufferFromHost::CALL)?,
            ..Args::empty()
        };
        check_size(element, dims, bytes.len())?;
        // SAFETY: sizes are checked; the caller vouches for the lifetime of the bytes; the results are ours.
        unsafe {
            self.api.call(&mut args)?;
            let buffer = Buffer {
                client: Arc::clone(self),
                raw: args.buffer,
                ends_soon: false,
            };
            Ok((
                buffer,
                Event::from_raw(Arc::clone(self), args.done_with_host_buffer),
            ))
        }
    }
}

fn check_size(element: ElementType, dims: &[i64], given: usize) -> Result<(), PjrtError> {
    let expected = dims.iter().try_fold(element.bytes(), |size, dim| {
        size.checked_mul(usize::try_from(*dim).ok()?)
    });
    if expected == Some(given) {
        return Ok(());
    }
    let expected = expected.map_or_else(
        || "a size that cannot exist".into(),
        |size| format!("{size} bytes"),
    );
    Err(PjrtError::invalid(
        sys::BufferFromHost::CALL,
        format!("an array of {element} {dims:?} has {expected}, got {given} bytes"),
    ))
}

impl Buffer {
    /// Type of the elements.
    ///
    /// # Errors
    /// The plugin's own, or a type this crate does not know.
    pub fn element_type(&self) -> Result<ElementType, PjrtError> {
        let mut args = sys::BufferElementType {
            buffer: self.raw,
            ..Args::empty()
        };
        // SAFETY: the buffer is live.
        unsafe { self.client.api.call(&mut args)? };
        known_type(args.element_type, sys::BufferElementType::CALL)
    }

    /// The dimensions.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn dims(&self) -> Result<&[i64], PjrtError> {
        let mut args = sys::BufferDimensions {
            buffer: self.raw,
            ..Args::empty()
        };
        // SAFETY: the buffer is live, and the dimensions live as long as it does.
        unsafe {
            self.client.api.call(&mut args)?;
            Ok(slice(args.dims, args.num_dims))
        }
    }

    /// The event of the buffer's contents being there.
    ///
    /// # Errors
    /// The plugin's own, for instance after donation.
    pub fn ready(&self) -> Result<Event, PjrtError> {
        let mut args = sys::BufferReadyEvent {
            buffer: self.raw,
            ..Args::empty()
        };
        // SAFETY: the buffer is live, the event is ours.
        unsafe {
            self.client.api.call(&mut args)?;
            Ok(Event::from_raw(Arc::clone(&self.client), args.event).ending_soon(self.ends_soon))
        }
    }

    /// A copy on a device of the same client, an index into [`Client::devices`], which may be the one where the buffer
    /// is; begun when this buffer is ready.
    ///
    /// # Errors
    /// `device` is out of range, or the plugin's own.
    pub fn copy_to_device(&self, device: usize) -> Result<Self, PjrtError> {
        let mut args = sys::BufferCopyToDevice {
            buffer: self.raw,
            dst_device: (self.client).device(device, sys::BufferCopyToDevice::CALL)?,
            ..Args::empty()
        };
        // SAFETY: the buffer and the device are live and of one client; the result is ours.
        unsafe { self.client.api.call(&mut args)? };
        Ok(Self {
            client: Arc::clone(&self.client),
            raw: args.dst_buffer,
            ends_soon: false,
        })
    }

    /// Copies the contents to host memory, row-major, in native byte order.
    ///
    /// # Errors
    /// The error of the computation that makes the contents, `DeadlineExceeded` after `timeout`, or the plugin's own.
    pub fn to_host(&self, timeout: Duration) -> Result<Vec<u8>, PjrtError> {
        let start = Instant::now();
        let mut bytes = vec![0; self.size()?];
        if self.client.is_host() {
            return self.copy_to(&mut bytes, timeout).map(|()| bytes);
        }
        // SAFETY: the vector's memory stays where it is; on a time-out it is leaked, as the plugin may still write to it.
        unsafe {
            let done = self.copy_raw(&mut bytes)?;
            let result = done.wait(timeout.saturating_sub(start.elapsed()));
            if result.as_ref().is_err_and(PjrtError::is_timeout) {
                std::mem::forget(bytes);
                return Err(result.unwrap_err());
            }
            result.map(|()| bytes)
        }
    }

    /// Copies the contents into `target`, which must have their size.
    ///
    /// `timeout` bounds the wait for the contents to be computed; the copy itself, which then takes the time of moving the bytes, is
    /// waited for without a bound because the plugin writes into borrowed memory.
    ///
    /// # Errors
    /// As for [`Buffer::to_host`], or `target` has another size.
    pub fn copy_to(&self, target: &mut [u8], timeout: Duration) -> Result<(), PjrtError> {
        let size = self.size()?;
        if size != target.len() {
            return Err(PjrtError::invalid(
                sys::BufferToHost::CALL,
                format!("the buffer has {size} bytes, the target {}", target.len()),
            ));
        }
        self.ready()?.wait(timeout)?;
        if self.client.is_host() {
            return self.copy_in_place(target);
        }
        // SAFETY: we do not return before the plugin is done with `target`.
        unsafe {
            let done = self.copy_raw(target)?;
            done.wait(Duration::MAX)
        }
    }

    /// Copies host memory of a ready buffer without a trip through the plugin's threads.
    fn copy_in_place(&self, target: &mut [u8]) -> Result<(), PjrtError> {
        let (api, buffer) = (self.client.api, self.raw);
        // SAFETY: the buffer is live and ready, so its memory holds the contents, as many bytes as `target` has; the external reference
        // keeps the memory from being freed or donated meanwhile, and is given back in every case.
        unsafe {
            api.call(&mut sys::BufferIncreaseExternalReferenceCount {
                buffer,
                ..Args::empty()
            })?;
            let mut args = sys::BufferMemoryPointer {
                buffer,
                ..Args::empty()
            };
            let result = api.call(&mut args);
            if result.is_ok() && !target.is_empty() {
                std::ptr::copy_nonoverlapping(
                    args.pointer.cast::<u8>(),
                    target.as_mut_ptr(),
                    target.len(),
                );
            }
            api.destroy(sys::BufferDecreaseExternalReferenceCount {
                buffer,
                ..Args::empty()
            });
            result
        }
    }

    /// Bytes of the contents on the host.
    fn size(&self) -> Result<usize, PjrtError> {
        let elements = self.dims()?.iter().product::<i64>();
        Ok(usize::try_from(elements).unwrap_or(0) * self.element_type()?.bytes())
    }

    /// Frees the device memory now; the handle is dead after that.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn delete(&self) -> Result<(), PjrtError> {
        // SAFETY: the buffer is live.
        unsafe {
            self.client.api.call(&mut sys::BufferDelete {
                buffer: self.raw,
                ..Args::empty()
            })
        }
    }

    /// Whether the buffer was deleted or donated.
    ///
    /// # Errors
    /// The plugin's own.
    pub fn is_deleted(&self) -> Result<bool, PjrtError> {
        let mut args = sys::BufferIsDeleted {
            buffer: self.raw,
            ..Args::empty()
        };
        // SAFETY: the buffer is live.
        unsafe { self.client.api.call(&mut args)? };
        Ok(args.is_deleted)
    }

    /// # Safety
    /// `target` has the size of the contents and stays valid until the event fires.
    unsafe fn copy_raw(&self, target: &mut [u8]) -> Result<Event, PjrtError> {
        let rank = self.dims()?.len();
        // Row-major: the last dimension varies fastest. A null layout would keep the device's own order, which is tiled on TPU.
        let minor_to_major: Vec<i64> = (0..rank as i64).rev().collect();
        let layout = sys::MemoryLayout {
            struct_size: std::mem::offset_of!(sys::MemoryLayout, kind) + 4,
            extension_start: std::ptr::null_mut(),
            tiled: sys::TiledLayout {
                struct_size: size_of::<sys::TiledLayout>(),
                extension_start: std::ptr::null_mut(),
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: rank,
                tile_dims: std::ptr::null(),
                tile_dim_sizes: std::ptr::null(),
                num_tiles: 0,
            },
            kind: 0,
        };
        // SAFETY: the target has the size of the contents, and the caller keeps it valid; the layout is read during the call.
        unsafe {
            let dst = target.as_mut_ptr().cast::<c_void>();
            let mut args = sys::BufferToHost {
                src: self.raw,
                host_layout: &raw const layout,
                dst,
                dst_size: target.len(),
                ..Args::empty()
            };
            self.client.api.call(&mut args)?;
            Ok(Event::from_raw(Arc::clone(&self.client), args.event))
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: we own the handle; a donated one must be destroyed too.
        unsafe {
            self.client.api.destroy(sys::BufferDestroy {
                buffer: self.raw,
                ..Args::empty()
            });
        };
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("element", &self.element_type())
            .field("dims", &self.dims())
            .finish()
    }
}

pub(crate) fn known_type(value: i32, call: &'static str) -> Result<ElementType, PjrtError> {
    ElementType::from_pjrt(value).ok_or_else(|| {
        PjrtError::invalid(
            call,
            format!("the element type number {value} is not supported"),
        )
    })
}
