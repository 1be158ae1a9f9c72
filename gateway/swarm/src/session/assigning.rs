//! Hands what the managers assign to the executor.

use swarm::update_volume_status_request::VolumeStatusUpdate;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::time::sleep;
use tonic::{Code, Response, Status};

use super::assignments::{Assignments, Change, Changes};
use super::{
    ANSWER_LIMIT, ASSIGNMENTS_LIMIT, ASSIGNMENTS_MAX, RESYNC_PAUSE, Session, client, ended,
};
use crate::error::Error;

/// The most volumes of one UpdateVolumeStatus.
const VOLUMES_MAX: usize = 1000;

impl Session<'_> {
    /// Hands assignments to the executor. A missing message begins a new stream.
    pub(super) async fn assignments(&self, assigned: &mut Assignments) -> Error {
        const CALL: &str = "Assignments";
        let connection = self.context.connection;
        let mut client = client(connection).max_decoding_message_size(ASSIGNMENTS_MAX);
        loop {
            let request = swarm::AssignmentsRequest {
                session_id: self.id.clone(),
            };
            let opened = async {
                let mut messages = client.assignments(request).await?.into_inner();
                let first = messages.message().await?.ok_or_else(ended)?;
                Ok(Response::new((messages, first)))
            };
            let (mut messages, mut message) =
                match connection.answer(CALL, ASSIGNMENTS_LIMIT, opened).await {
                    Ok(opened) => opened,
                    // A manager of 2016 lacks the call.
                    Err(Error::Refused { status, .. }) if status.code() == Code::Unimplemented => {
                        return self.tasks(assigned).await;
                    }
                    Err(error) => return error,
                };
            assigned.begin_stream();
            loop {
                match assigned.apply(message) {
                    Ok(changes) => {
                        if let Err(error) = self.hand_over(changes).await {
                            return error;
                        }
                    }
                    Err(reason) => {
                        tracing::warn!(manager = connection.manager(), %reason, "assignments are requested again");
                        break;
                    }
                }
                message = match messages.message().await {
                    Ok(Some(message)) => message,
                    Ok(None) => return self.refused(CALL, ended()),
                    Err(status) => return self.refused(CALL, status),
                };
            }
            sleep(RESYNC_PAUSE).await;
        }
    }

    /// The same by the deprecated Tasks stream, which managers of 2016 have instead. Each of its messages has all tasks;
    /// those managers have no secrets, configs and volumes.
    async fn tasks(&self, assigned: &mut Assignments) -> Error {
        const CALL: &str = "Tasks";
        let connection = self.context.connection;
        let mut client = client(connection).max_decoding_message_size(ASSIGNMENTS_MAX);
        let request = swarm::TasksRequest {
            session_id: self.id.clone(),
        };
        let opened = async {
            let mut messages = client.tasks(request).await?.into_inner();
            let first = messages.message().await?.ok_or_else(ended)?;
            Ok(Response::new((messages, first)))
        };
        let (mut messages, mut message) =
            match connection.answer(CALL, ASSIGNMENTS_LIMIT, opened).await {
                Ok(opened) => opened,
                Err(error) => return error,
            };
        assigned.begin_stream();
        loop {
            let done = match assigned.apply(complete(message)) {
                Ok(changes) => self.hand_over(changes).await,
                Err(reason) => Err(self.refused(CALL, Status::out_of_range(reason.to_string()))),
            };
            if let Err(error) = done {
                return error;
            }
            message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return self.refused(CALL, ended()),
                Err(status) => return self.refused(CALL, status),
            };
        }
    }

    /// Hands changes to the executor. The node has no plugins for cluster volumes, so none was ever published
    /// on it: of a volume to remove the manager is notified at once, because it waits for that before it
    /// detaches the volume.
    async fn hand_over(&self, changes: Changes) -> Result<(), Error> {
        let gone: Vec<VolumeStatusUpdate> = changes
            .list
            .iter()
            .filter_map(|change| match change {
                Change::VolumeGone(id) => Some(VolumeStatusUpdate {
                    id: id.clone(),
                    unpublished: true,
                }),
                Change::Secret(_)
                | Change::Config(_)
                | Change::Volume(_)
                | Change::Task(_)
                | Change::TaskGone(_)
                | Change::SecretGone(_)
                | Change::ConfigGone(_) => None,
            })
            .collect();
        // Applied before the volumes are reported, in the order that the changes demand.
        self.context.executor.apply(changes).await;
        for updates in gone.chunks(VOLUMES_MAX) {
            let request = swarm::UpdateVolumeStatusRequest {
                session_id: self.id.clone(),
                updates: updates.to_owned(),
            };
            let mut client = client(self.context.connection);
            let call = client.update_volume_status(request);
            let answer = self
                .context
                .connection
                .answer("UpdateVolumeStatus", ANSWER_LIMIT, call)
                .await?;
            let swarm::UpdateVolumeStatusResponse {} = answer;
        }
        Ok(())
    }
}

/// A message of the Tasks stream as one of the Assignments stream.
fn complete(message: swarm::TasksMessage) -> swarm::AssignmentsMessage {
    let swarm::TasksMessage { tasks } = message;
    let change = |task: swarm::Task| swarm::AssignmentChange {
        assignment: Some(swarm::Assignment {
            item: Some(swarm::assignment::Item::Task(Box::new(task))),
        }),
        action: swarm::assignment_change::AssignmentAction::Update.into(),
    };
    swarm::AssignmentsMessage {
        r#type: swarm::assignments_message::Type::Complete.into(),
        applies_to: String::new(),
        results_in: String::new(),
        changes: tasks.into_iter().map(change).collect(),
    }
}
