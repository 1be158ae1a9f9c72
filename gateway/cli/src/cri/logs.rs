//! Prints the log of a container of any CRI runtime, in the CRI log format.

use std::path::PathBuf;
use std::process::ExitCode;

use switchyard_logkeeper::reader::{LogLocation, LogQuery, LogReader, ReadWaiter};
use switchyard_proto::cri::v1 as cri;

use super::{Client, CriError, refused};
use crate::log_output::{LogPrinter, PrintError};

impl Client {
    /// Prints a container's log so far: its output to standard output, its errors to standard error; exit status 1
    /// if parts of it cannot be read.
    pub(super) async fn logs(&mut self, container: String) -> Result<ExitCode, CriError> {
        let request = self.request(cri::ContainerStatusRequest {
            container_id: container,
            verbose: false,
        });
        let answer = self
            .runtime
            .container_status(request)
            .await
            .map_err(refused("ContainerStatus"))?;
        let status = answer.into_inner().status;
        let status = status.ok_or(CriError::Incomplete {
            call: "ContainerStatus",
            what: "a status",
        })?;
        let is_ended = status.state() == cri::ContainerState::ContainerExited;
        let path = PathBuf::from(status.log_path);
        let (Some(root), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(CriError::NoLog(status.id));
        };
        let location = LogLocation::Cri {
            root: root.to_owned(),
            path: name.into(),
        };
        // Who ends this process ends the reader as well.
        let waiter = ReadWaiter::default();
        let mut reader = LogReader::open(&location, &LogQuery::default(), &waiter.interest())
            .map_err(PrintError::from)?;
        if is_ended {
            reader.end();
        }
        let mut printer = LogPrinter::new(self.output, false);
        match printer.drain(&mut reader).await {
            Ok(_) if printer.is_complete() => Ok(ExitCode::SUCCESS),
            Ok(_) => Ok(ExitCode::FAILURE),
            Err(error) if error.is_closed_output() => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error.into()),
        }
    }
}
