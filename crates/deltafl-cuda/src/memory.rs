//! GPU buffers that grow and are reused in later rounds.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DeviceRepr, PinnedHostSlice, ValidAsZeroBits};

use crate::GpuError;
use crate::launch::{Arg, pointer};

/// GPU memory with at least the requested length.
pub(crate) struct Buffer<T> {
    stream: Arc<CudaStream>,
    slice: CudaSlice<T>,
}

impl<T: DeviceRepr + ValidAsZeroBits> Buffer<T> {
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, GpuError> {
        Ok(Self { slice: stream.alloc_zeros(1)?, stream: stream.clone() })
    }

    /// Ensures room for `len` entries. The contents may be lost.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<&mut Self, GpuError> {
        if self.slice.len() < len {
            let free = self.stream.context().mem_get_info()?.0 as u64;
            let needed = (len * size_of::<T>()) as u64;
            // Freed first, so that both need not fit.
            self.slice = self.stream.alloc_zeros(1)?;
            self.slice = self.stream.alloc_zeros(len).map_err(|error| {
                if error.0 == cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                    GpuError::Memory { what: "a round", needed, free }
                } else {
                    error.into()
                }
            })?;
        }
        Ok(self)
    }

    pub(crate) fn clear(&mut self, len: usize) -> Result<(), GpuError> {
        Ok(self.stream.memset_zeros(&mut self.slice.slice_mut(..len))?)
    }

    pub(crate) fn arg(&self) -> Arg {
        pointer(&self.slice, &self.stream)
    }

    pub(crate) fn slice(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

/// Page-locked host memory that receives copies of a buffer.
pub(crate) struct HostCopy<T> {
    host: Option<PinnedHostSlice<T>>,
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> HostCopy<T> {
    pub(crate) fn new() -> Self {
        Self { host: None }
    }

    /// Downloads this many entries of a buffer and waits for them.
    pub(crate) fn receive(&mut self, buffer: &Buffer<T>, len: usize) -> Result<&[T], GpuError> {
        if self.host.as_ref().is_none_or(|host| host.len() < len) {
            self.host = None;
        }
        let host = match &mut self.host {
            Some(host) => host,
            empty => empty.insert(pinned(&buffer.stream, len.max(1).next_power_of_two())?),
        };
        buffer.stream.memcpy_dtoh(&buffer.slice.slice(..len), &mut host.as_mut_slice()?[..len])?;
        buffer.stream.synchronize()?;
        Ok(&host.as_slice()?[..len])
    }
}

/// GPU memory with page-locked host memory for its copies.
pub(crate) struct Mirror<T> {
    host: PinnedHostSlice<T>,
    buffer: Buffer<T>,
    /// Recorded after the last copy out of the host memory.
    sent: CudaEvent,
    /// Whether the host has not yet waited for that copy.
    sending: bool,
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> Mirror<T> {
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self, GpuError> {
        let sent = stream.context().new_event(None)?;
        Ok(Self { host: pinned(stream, 1)?, buffer: Buffer::new(stream)?, sent, sending: false })
    }

    /// Lets `write` fill the entries on the host, and uploads them.
    pub(crate) fn send(&mut self, len: usize, write: impl FnOnce(&mut [T])) -> Result<(), GpuError> {
        self.reserve(len)?;
        if len > 0 {
            let host = self.host_slice(len)?;
            write(host);
            // SAFETY: the host memory is not written before the event confirms that the copy is
            // done.
            let host = unsafe { std::slice::from_raw_parts(host.as_ptr(), len) };
            let stream = self.buffer.stream.clone();
            stream.memcpy_htod(host, &mut self.buffer.slice.slice_mut(..len))?;
            self.sending = true;
            self.sent.record(&stream)?;
        }
        Ok(())
    }

    /// Downloads this many entries and waits for them.
    pub(crate) fn receive(&mut self, len: usize) -> Result<&[T], GpuError> {
        self.fetch(len)?;
        self.buffer.stream.synchronize()?;
        Ok(&self.host.as_slice()?[..len])
    }

    /// Downloads this many entries of each buffer and waits once. Both buffers use the same stream.
    pub(crate) fn receive_with<'m, U: DeviceRepr + ValidAsZeroBits + Copy>(
        &'m mut self,
        other: &'m mut Mirror<U>,
        len: usize,
    ) -> Result<(&'m [T], &'m [U]), GpuError> {
        self.fetch(len)?;
        let second = other.receive(len)?;
        Ok((&self.host.as_slice()?[..len], second))
    }

    /// Starts to download this many entries.
    fn fetch(&mut self, len: usize) -> Result<(), GpuError> {
        self.reserve(len)?;
        self.wait()?;
        let stream = self.buffer.stream.clone();
        Ok(stream.memcpy_dtoh(&self.buffer.slice.slice(..len), &mut self.host.as_mut_slice()?[..len])?)
    }

    /// Ensures room for this many entries. The contents are lost if it grows.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<(), GpuError> {
        if self.host.len() < len {
            self.wait()?;
            self.host = pinned(&self.buffer.stream, len.next_power_of_two())?;
        }
        self.buffer.reserve(len)?;
        Ok(())
    }

    pub(crate) fn arg(&self) -> Arg {
        self.buffer.arg()
    }

    pub(crate) fn clear(&mut self, len: usize) -> Result<(), GpuError> {
        self.buffer.clear(len)
    }

    fn host_slice(&mut self, len: usize) -> Result<&mut [T], GpuError> {
        self.wait()?;
        Ok(&mut self.host.as_mut_slice()?[..len])
    }
}

impl<T> Mirror<T> {
    fn wait(&mut self) -> Result<(), GpuError> {
        if std::mem::take(&mut self.sending) {
            self.sent.synchronize()?;
        }
        Ok(())
    }
}

impl<T> Drop for Mirror<T> {
    fn drop(&mut self) {
        // A copy may still read the host memory, which is freed next.
        let _ = self.wait();
    }
}

/// Page-locked memory for the host.
fn pinned<T: DeviceRepr + ValidAsZeroBits>(
    stream: &CudaStream,
    len: usize,
) -> Result<PinnedHostSlice<T>, GpuError> {
    // SAFETY: every bit pattern is valid for T, since `ValidAsZeroBits` types here are numbers and
    // structs of numbers. All entries that are read have been written.
    Ok(unsafe { stream.context().alloc_pinned_with_flags(len, 0) }?)
}
