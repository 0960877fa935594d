//! The kernel in a boot file.

use handover::Kernel;
use proto::channel::enrolment::KernelDigest;

/// The alignment of the kernel in a boot file, in bytes.
const KERNEL_ALIGN: usize = 8;

/// Returns the digest that the kernel in a boot file computes of itself when it runs; `None` if the file has
/// no kernel.
pub(crate) fn digest(image: &[u8]) -> Option<KernelDigest> {
    let places = (0..image.len()).step_by(KERNEL_ALIGN).filter_map(|at| image.get(at..));
    let kernel = places.filter_map(|file| Kernel::parse(file).ok()).next()?;
    let constant: Vec<_> = kernel.segments().filter(|segment| !segment.is_writable).collect();
    Some(KernelDigest::of(constant.iter().map(|segment| segment.bytes)))
}
