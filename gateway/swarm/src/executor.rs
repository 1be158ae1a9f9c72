//! What runs the tasks of this node.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::session::assignments::Changes;
use crate::session::description::NodeFacts;

/// Runs tasks. Statuses go to [`Reports`](crate::Reports).
#[async_trait]
pub trait Executor: Send + Sync {
    /// What managers are told of the node. They are told of a change within ten seconds.
    fn facts(&self) -> watch::Receiver<NodeFacts>;

    /// Takes changes over. It does not wait for tasks: the next changes come when it returns. It may be given what it
    /// has already, since each new session begins with everything. If dropped, the same changes come again.
    async fn apply(&self, changes: Changes);
}
