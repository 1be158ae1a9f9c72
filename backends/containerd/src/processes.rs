//! Ends the processes of containers, and protects the exits of those that may end while containerd is down.

use std::sync::Arc;

use crate::client::Client;
use crate::client::features::ContainerdFeatures;
use crate::context::Context;
use crate::predecessor_calls::PredecessorCalls;
use crate::shims::Shims;

mod ending;
mod protected_exits;

/// The main processes of containers, in containerd.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) features: ContainerdFeatures,
    pub(crate) shims: Arc<Shims>,
    pub(crate) predecessor_calls: Arc<PredecessorCalls>,
}
