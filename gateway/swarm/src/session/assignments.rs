//! The managers' assignments to this node: a pure reduction of the messages of the Assignments stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::assignment::Item;
use switchyard_proto::docker::swarmkit::v1::assignment_change::AssignmentAction;
use switchyard_proto::docker::swarmkit::v1::assignments_message::Type;

#[cfg(test)]
mod tests;

/// Maximum number of tasks, secrets, configs and volumes of a node, each. A node has some hundred containers.
pub const ITEMS_MAX: usize = 20_000;

/// Everything that is assigned to the node, as of the last message.
#[derive(Debug, Default)]
pub struct Assignments {
    /// The `results_in` of the last message of this stream; `None` before the first one.
    sequence: Option<String>,
    tasks: BTreeMap<String, Arc<swarm::Task>>,
    secrets: BTreeMap<String, Arc<swarm::Secret>>,
    configs: BTreeMap<String, Arc<swarm::Config>>,
    volumes: BTreeMap<String, Arc<swarm::VolumeAssignment>>,
}

/// The changes of a message, in the order in which they are to be applied: dependencies are added before
/// tasks, and removed after them. Managers send them in any order.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// True if the message was complete: the node's other items are to be removed, also from before its
    /// start.
    pub is_complete: bool,
    /// The changes.
    pub list: Vec<Change>,
}

/// One change. Applying it twice does the same as once.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A secret that tasks may use.
    Secret(Arc<swarm::Secret>),
    /// A config that tasks may use.
    Config(Arc<swarm::Config>),
    /// A volume of a cluster plugin.
    Volume(Arc<swarm::VolumeAssignment>),
    /// A task, new or changed.
    Task(Arc<swarm::Task>),
    /// A task is not the node's any more: its container and its logs go.
    TaskGone(String),
    /// A volume is not needed any more.
    VolumeGone(String),
    /// A secret is withdrawn.
    SecretGone(String),
    /// A config is withdrawn.
    ConfigGone(String),
}

/// The reason why a message cannot be applied: the stream is to be reopened, which sends a complete set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unapplicable {
    /// A message is missing before it.
    #[error(
        "a message is missing: it applies to {found:?}, and the last one resulted in {expected:?}"
    )]
    OutOfSequence {
        /// The sequence number that the last message led to.
        expected: Option<String>,
        /// The sequence number that this message applies to.
        found: String,
    },
    /// It is of a type that this program does not know.
    #[error("its type {0} is unknown")]
    UnknownType(i32),
    /// There is more than any node can have.
    #[error("it assigns more than {ITEMS_MAX} items of a kind")]
    TooMany,
}

/// The changes of one message, sorted by kind; `None` removes. Of several changes of one item the last counts.
#[derive(Default)]
struct Sorted {
    tasks: BTreeMap<String, Option<Arc<swarm::Task>>>,
    secrets: BTreeMap<String, Option<Arc<swarm::Secret>>>,
    configs: BTreeMap<String, Option<Arc<swarm::Config>>>,
    volumes: BTreeMap<String, Option<Arc<swarm::VolumeAssignment>>>,
}

// === impl Assignments ===

impl Assignments {
    /// A new stream begins; what was assigned stays until its first message.
    pub fn begin_stream(&mut self) {
        self.sequence = None;
    }

    /// Applies a message. After an error nothing has changed.
    ///
    /// # Errors
    /// The stream is to be reopened.
    pub fn apply(&mut self, message: swarm::AssignmentsMessage) -> Result<Changes, Unapplicable> {
        let swarm::AssignmentsMessage {
            r#type,
            applies_to,
            results_in,
            changes,
        } = message;
        let is_complete = match Type::try_from(r#type) {
            Ok(Type::Complete) => true,
            Ok(Type::Incremental) if self.sequence.as_ref() == Some(&applies_to) => false,
            Ok(Type::Incremental) => {
                return Err(Unapplicable::OutOfSequence {
                    expected: self.sequence.clone(),
                    found: applies_to,
                });
            }
            Err(_) => return Err(Unapplicable::UnknownType(r#type)),
        };
        let mut sorted = Sorted::of(changes);
        if is_complete {
            missing(&self.tasks, &mut sorted.tasks);
            missing(&self.secrets, &mut sorted.secrets);
            missing(&self.configs, &mut sorted.configs);
            // Managers name volumes only while they are attached, and remove them by name alone.
        }
        if !fits(&self.tasks, &sorted.tasks)
            || !fits(&self.secrets, &sorted.secrets)
            || !fits(&self.configs, &sorted.configs)
            || !fits(&self.volumes, &sorted.volumes)
        {
            return Err(Unapplicable::TooMany);
        }
        let list = sorted.in_order();
        self.sequence = Some(results_in);
        merge(&mut self.tasks, sorted.tasks);
        merge(&mut self.secrets, sorted.secrets);
        merge(&mut self.configs, sorted.configs);
        merge(&mut self.volumes, sorted.volumes);
        Ok(Changes { is_complete, list })
    }

    /// The tasks, by their ids.
    pub fn tasks(&self) -> impl Iterator<Item = &Arc<swarm::Task>> {
        self.tasks.values()
    }
}

// === impl Sorted ===

impl Sorted {
    fn of(changes: Vec<swarm::AssignmentChange>) -> Self {
        let mut sorted = Self::default();
        for change in changes {
            let is_removal = match change.action() {
                AssignmentAction::Update => false,
                AssignmentAction::Remove => true,
            };
            let set = !is_removal;
            match change.assignment.and_then(|assignment| assignment.item) {
                Some(Item::Task(task)) => put(
                    &mut sorted.tasks,
                    task.id.clone(),
                    set.then(|| Arc::new(*task)),
                ),
                Some(Item::Secret(secret)) => {
                    put(
                        &mut sorted.secrets,
                        secret.id.clone(),
                        set.then(|| Arc::new(secret)),
                    );
                }
                Some(Item::Config(config)) => {
                    put(
                        &mut sorted.configs,
                        config.id.clone(),
                        set.then(|| Arc::new(config)),
                    );
                }
                Some(Item::Volume(volume)) => {
                    put(
                        &mut sorted.volumes,
                        volume.id.clone(),
                        set.then(|| Arc::new(volume)),
                    );
                }
                // An item of a later version.
                None => {}
            }
        }
        sorted
    }

    fn in_order(&self) -> Vec<Change> {
        let mut list = Vec::new();
        list.extend(self.secrets.values().flatten().cloned().map(Change::Secret));
        list.extend(self.configs.values().flatten().cloned().map(Change::Config));
        list.extend(self.volumes.values().flatten().cloned().map(Change::Volume));
        list.extend(self.tasks.values().flatten().cloned().map(Change::Task));
        list.extend(gone(&self.tasks).map(Change::TaskGone));
        list.extend(gone(&self.volumes).map(Change::VolumeGone));
        list.extend(gone(&self.secrets).map(Change::SecretGone));
        list.extend(gone(&self.configs).map(Change::ConfigGone));
        list
    }
}

/// An object without an id cannot be referred to.
fn put<T>(items: &mut BTreeMap<String, Option<T>>, id: String, item: Option<T>) {
    if !id.is_empty() {
        items.insert(id, item);
    }
}

/// Removes what is known and not in a complete message.
fn missing<T>(known: &BTreeMap<String, T>, new: &mut BTreeMap<String, Option<T>>) {
    let gone: Vec<String> = known
        .keys()
        .filter(|id| !new.contains_key(*id))
        .cloned()
        .collect();
    new.extend(gone.into_iter().map(|id| (id, None)));
}

fn fits<T>(known: &BTreeMap<String, T>, new: &BTreeMap<String, Option<T>>) -> bool {
    let added = new
        .iter()
        .filter(|(id, item)| item.is_some() && !known.contains_key(*id))
        .count();
    let removed = gone(new).filter(|id| known.contains_key(id)).count();
    known.len() - removed + added <= ITEMS_MAX
}

fn merge<T>(known: &mut BTreeMap<String, T>, new: BTreeMap<String, Option<T>>) {
    for (id, item) in new {
        match item {
            Some(item) => drop(known.insert(id, item)),
            None => drop(known.remove(&id)),
        }
    }
}

fn gone<T>(items: &BTreeMap<String, Option<T>>) -> impl Iterator<Item = String> {
    items
        .iter()
        .filter(|(_, item)| item.is_none())
        .map(|(id, _)| id.clone())
}
