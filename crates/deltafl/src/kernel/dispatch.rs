//! Compilation of one kernel for each instruction set.

/// Declares the entry points of a generic kernel, and a function that dispatches to one of them.
///
/// `fn name(..) = generic or reference;` declares `name(granted, ..)`. It calls `reference(..)`, or
/// the generic kernel inlined into a function with the features of the instruction set.
macro_rules! entry {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $generic:path, $reference:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(kernel: $crate::kernel::Granted, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($arg: $ty),*) {
                // SAFETY: this function has the features, and its caller guarantees the rest.
                unsafe { $generic($crate::kernel::avx512::Avx512, $($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $generic($crate::kernel::avx2::Avx2, $($arg),*) }
            }
            match kernel.isa() {
                $crate::kernel::Isa::Reference => $reference($($arg),*),
                // SAFETY: arrays need no CPU feature. The kernel checks the lengths of its slices.
                $crate::kernel::Isa::Portable => unsafe { $generic($crate::kernel::portable::Portable, $($arg),*) },
                // SAFETY: the instruction set was granted. The kernel checks the lengths of its
                // slices.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(not(target_arch = "x86_64"))]
                other => unreachable!("{other} was granted on a CPU that lacks it"),
            }
        }
    };
}

/// Declares a plain loop that the compiler vectorises for each instruction set.
///
/// `fn name(..) = loop;` declares `name(granted, ..)`. Nothing is split or fused, so all
/// instruction sets give the same bits.
macro_rules! plain_entry {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $plain:path) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(kernel: $crate::kernel::Granted, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) {
                $plain($($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) {
                $plain($($arg),*);
            }
            match kernel.isa() {
                // SAFETY: the instruction set was granted, and the loop is safe.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::Isa::Avx512 => unsafe { avx512($($arg),*) },
                _ => $plain($($arg),*),
            }
        }
    };
}

pub(crate) use {entry, plain_entry};
