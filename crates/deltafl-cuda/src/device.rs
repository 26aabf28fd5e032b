//! A GPU, opened once and shared by all runs on it.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, result, sys};

use crate::GpuError;
use crate::compile::{KernelCache, KernelSource};

/// A GPU.
#[derive(Clone, Debug)]
pub struct GpuDevice {
    context: Arc<CudaContext>,
    name: String,
    capability: (i32, i32),
    cache: KernelCache,
}

/// A compiled and loaded source.
pub(crate) struct Module {
    module: Arc<CudaModule>,
    stream: Arc<CudaStream>,
}

/// A kernel and the shared memory of its blocks.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) function: CudaFunction,
    pub(crate) shared: u32,
}

impl GpuDevice {
    /// Opens GPU `ordinal`. Compiled kernels are stored in `cache`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no driver, or no GPU with this number.
    pub fn open(ordinal: usize, cache: KernelCache) -> Result<Self, GpuError> {
        let count = Self::count()?;
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        // Every run has its own stream and shares only constant data, so no events per buffer are
        // needed.
        #[allow(unsafe_code)]
        // SAFETY: buffers are used on the stream that allocated them. Shared buffers are complete
        // before they are shared.
        unsafe {
            context.disable_event_tracking();
        }
        let (name, capability) = (context.name()?, context.compute_capability()?);
        Ok(Self { context, name, capability, cache })
    }

    /// Returns the number of GPUs that the driver reports.
    pub fn count() -> Result<usize, GpuError> {
        #[allow(unsafe_code)]
        // SAFETY: searches for a library by name and closes it.
        let present = unsafe { sys::is_culib_present() };
        if !present {
            return Err(GpuError::NoDriver);
        }
        if result::init().is_err() {
            return Ok(0);
        }
        Ok(usize::try_from(CudaContext::device_count()?).unwrap_or(0))
    }

    /// Returns the name that the driver reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the compute capability.
    pub fn capability(&self) -> (i32, i32) {
        self.capability
    }

    /// Returns the free and total memory in bytes.
    pub fn memory(&self) -> Result<(u64, u64), GpuError> {
        let (free, total) = self.context.mem_get_info()?;
        Ok((free as u64, total as u64))
    }

    /// Returns the number of streaming multiprocessors.
    pub(crate) fn multiprocessors(&self) -> Result<u32, GpuError> {
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(u32::try_from(self.context.attribute(attribute)?).unwrap_or(1))
    }

    /// Returns the shared memory that a block may use.
    pub(crate) fn shared_memory(&self) -> Result<u32, GpuError> {
        let attribute = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        Ok(u32::try_from(self.context.attribute(attribute)?).unwrap_or(0))
    }

    /// Creates a stream.
    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>, GpuError> {
        Ok(self.context.new_stream()?)
    }

    /// Compiles a source, or reads it from the cache, and loads it.
    pub(crate) fn load(&self, source: &KernelSource, stream: &Arc<CudaStream>) -> Result<Module, GpuError> {
        let image = self.cache.image(source, self.capability)?;
        let module = self.context.load_module(image)?;
        Ok(Module { module, stream: stream.clone() })
    }
}

impl Module {
    /// Returns a kernel whose blocks use this much shared memory.
    pub(crate) fn kernel(&self, name: &str, shared: u32) -> Result<Kernel, GpuError> {
        let function = self.module.load_function(name)?;
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, i32::try_from(shared).unwrap_or(i32::MAX))?;
        Ok(Kernel { function, shared })
    }

    /// Returns a constant that the source computes, for example the size of its shared memory.
    pub(crate) fn constant(&self, name: &str) -> Result<u32, GpuError> {
        let mut bytes = [0; 4];
        self.stream.memcpy_dtoh(&self.module.get_global(name, &self.stream)?, &mut bytes[..])?;
        self.stream.synchronize()?;
        Ok(u32::from_le_bytes(bytes))
    }
}
