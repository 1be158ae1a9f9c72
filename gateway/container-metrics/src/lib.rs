//! Metrics of containers under the names that cAdvisor gave them, for every owner.
//!
//! ```text
//! TaskMetrics, InterfaceStats ─sheet─► samples ─┬─► CRI's ListPodSandboxMetrics (whole numbers)
//!                                               └─► Figures ─► Prometheus text (decimals)
//! ```
//!
//! - [`Metric`] has the names, help texts, types and labels.
//! - [`sheet`] decides which reading becomes a sample of which metric. A metric for which the kernel has no
//!   source has no sample: a zero is only reported if it was measured.
//! - [`Figures`] keeps the samples of one reading of all owners, and writes them as text, in chunks.

mod amount;
mod figures;
mod metric;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod sheet;
mod text;

pub use amount::Amount;
pub use figures::{Chunks, Figures, Subject};
pub use metric::{Kind, Metric};
