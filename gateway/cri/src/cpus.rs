//! Determines which of the CPUs that containers are bound to are exclusive to a container.
//!
//! CRI has one field for both cases: a kubelet with a static CPU manager binds every container to CPUs, most
//! of them to a shared pool. Only its PodResources API says which CPUs it has assigned exclusively.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use switchyard_core::Result;
use switchyard_core::spec::{CpuList, CpuSet};

/// Reports the CPUs that the kubelet has assigned exclusively to containers.
#[tonic::async_trait]
pub trait ExclusiveCpus: Send + Sync + fmt::Debug {
    /// The union of all of them.
    ///
    /// # Errors
    /// Any error, if they cannot be read from the kubelet.
    async fn exclusive(&self) -> Result<CpuSet>;
}

/// Reads the exclusive CPUs, and logs a warning once while they cannot be read.
#[derive(Debug, Default)]
pub(crate) struct CpuOwnership {
    source: Option<Arc<dyn ExclusiveCpus>>,
    warned: AtomicBool,
}

// === impl CpuOwnership ===

impl CpuOwnership {
    pub(crate) fn new(source: Option<Arc<dyn ExclusiveCpus>>) -> Self {
        Self {
            source,
            warned: AtomicBool::default(),
        }
    }

    /// Returns whether these CPUs are exclusive to one container; `None` if they cannot be read from the
    /// kubelet. A shared pool contains CPUs that are exclusive to no container, so comparing the list is
    /// enough.
    pub(crate) async fn are_exclusive(&self, list: Option<&CpuList>) -> Option<bool> {
        let Some(list) = list else { return Some(false) };
        match self.source.as_ref()?.exclusive().await {
            Ok(exclusive) => {
                self.warned.store(false, Ordering::Relaxed);
                Some(list.set().is_subset(&exclusive))
            }
            Err(error) => {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = error.report(),
                        "cannot read from the kubelet which CPUs it has assigned exclusively: they are not protected from use by other containers"
                    );
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::Error;

    use super::*;

    #[derive(Debug)]
    struct Kubelet(Option<&'static str>);

    #[tonic::async_trait]
    impl ExclusiveCpus for Kubelet {
        async fn exclusive(&self) -> Result<CpuSet> {
            self.0
                .ok_or_else(|| Error::unavailable("it is away"))?
                .parse()
        }
    }

    #[tokio::test]
    async fn cpuset_is_exclusive_if_the_kubelet_assigned_all_of_it_to_single_containers() {
        let check =
            async |kubelet: Option<&'static str>, list: Option<&str>, expected: Option<bool>| {
                let ownership = CpuOwnership::new(Some(Arc::new(Kubelet(kubelet))));
                let list = list.map(|list| CpuList::new(list).unwrap());
                assert_eq!(
                    ownership.are_exclusive(list.as_ref()).await,
                    expected,
                    "{kubelet:?} {list:?}"
                );
            };
        check(Some("2-3,6"), Some("3"), Some(true)).await;
        check(Some("2-3,6"), Some("0-1,4-5"), Some(false)).await;
        check(Some("2-3"), Some("3-4"), Some(false)).await;
        check(None, Some("3"), None).await;
        check(None, None, Some(false)).await;
        let list = CpuList::new("3").unwrap();
        assert_eq!(
            CpuOwnership::default().are_exclusive(Some(&list)).await,
            None
        );
    }
}
