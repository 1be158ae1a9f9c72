//! Builds the OCI spec of a task: what is on the host is looked up on the threads that a dead file system may block, and
//! nothing else is done there.

use std::path::PathBuf;
use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::spec::TaskSpec;
use switchyard_runtime_spec::{
    Built, Gathered, Host, ImageConfig, ImageVolume, Input, Questions, RealHost, ResolvedMount,
    ResolvedUser, SandboxFacts, build, depends_on_host_paths,
};

use crate::base::fs::blocking;

/// All that a spec is made of, but for what is on the host: see [`Input`].
pub(super) struct SpecRequest {
    pub(super) id: String,
    pub(super) task: TaskSpec,
    pub(super) mounts: Vec<ResolvedMount>,
    pub(super) image: ImageConfig,
    pub(super) sandbox: SandboxFacts,
    pub(super) host: Host,
    pub(super) user: ResolvedUser,
    pub(super) volumes: Vec<ImageVolume>,
    pub(super) stage: PathBuf,
    pub(super) cgroups_path: String,
    pub(super) target_pid: Option<PathBuf>,
    pub(super) recursive_readonly: bool,
    pub(super) init: PathBuf,
    pub(super) cdi_dirs: Vec<PathBuf>,
}

// === impl SpecRequest ===

impl SpecRequest {
    /// Builds the spec. `object` is for whom the host is looked at, as for [`BlockingPool::run`]. A spec that depends on no
    /// path of the host takes no place in `pool`. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`build`], and of [`Gathered::resolve_cdi`]; `Unavailable` if the host does not answer in time.
    pub(super) async fn build(self, pool: &BlockingPool, object: String) -> Result<Built> {
        let request = Arc::new(self);
        let asking = Arc::clone(&request);
        let look = move || Ok(asking.look());
        // Paths and devices of the host can be on a dead network file system, where this blocks for ever.
        let mut found = if depends_on_host_paths(&request.task) {
            pool.run(object.clone(), look).await?
        } else {
            blocking(look).await?
        };
        if !request.task.cdi_devices.is_empty() {
            // The files of CDI devices name device nodes, and may be long.
            let reading = Arc::clone(&request);
            let (known, nodes) = blocking(move || {
                let nodes = found.resolve_cdi(&reading.task.cdi_devices, &reading.cdi_dirs)?;
                Ok((found, nodes))
            })
            .await?;
            found = if nodes.is_empty() {
                known
            } else {
                pool.run(object, move || Ok(known.with_nodes(nodes, &RealHost)))
                    .await?
            };
        }
        blocking(move || build(&request.input(&found))).await
    }

    /// Looks at the host. Blocks.
    fn look(&self) -> Gathered {
        let Self {
            task,
            mounts,
            sandbox,
            host,
            cdi_dirs,
            ..
        } = self;
        Gathered::of_task(
            &Questions {
                task,
                mounts,
                sandbox,
                host,
                cdi_dirs,
            },
            &RealHost,
        )
    }

    fn input<'a>(&'a self, found: &'a Gathered) -> Input<'a> {
        let Self {
            id,
            task,
            mounts,
            image,
            sandbox,
            host,
            user,
            volumes,
            stage,
            cgroups_path,
            target_pid,
            recursive_readonly,
            init,
            cdi_dirs: _,
        } = self;
        Input {
            id,
            task,
            mounts,
            image,
            sandbox,
            host,
            found,
            user,
            volumes,
            stage,
            cgroups_path,
            target_pid: target_pid.as_deref(),
            recursive_readonly: *recursive_readonly,
            init,
        }
    }
}
