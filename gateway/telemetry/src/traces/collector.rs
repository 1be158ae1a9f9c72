//! The connection to the collector: OTLP over gRPC, with or without TLS.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use switchyard_linux::report;
use switchyard_proto::opentelemetry::proto::collector::trace::v1 as collector;
use switchyard_proto::opentelemetry::proto::collector::trace::v1::trace_service_client::TraceServiceClient;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request};

use super::settings::{TraceSettings, TraceSettingsError};

/// Time for a connection to be made.
const CONNECT: Duration = Duration::from_secs(5);

/// The largest file with authorities, in bytes: bundles of all public ones have a quarter of a MiB.
const AUTHORITIES_MAX: u64 = 4 << 20;

/// The longest text of the collector that is logged, in bytes.
const TEXT_MAX: usize = 256;

/// Sends spans to a collector; connects at the first request, and again whenever the connection is lost.
pub(super) struct Collector {
    client: TraceServiceClient<Channel>,
    /// They may hold credentials.
    headers: MetadataMap,
    limit: Duration,
}

/// Reason why spans were not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("the collector did not answer within {0:?}")]
    Deadline(Duration),
    #[error("the export to the collector ended with {code:?}: {text}")]
    Refused { code: Code, text: String },
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Collector {
    pub(super) fn new(settings: &TraceSettings) -> Result<Self, TraceSettingsError> {
        let client = TraceServiceClient::new(endpoint(settings)?.connect_lazy());
        Ok(Self {
            client,
            headers: settings.headers.clone(),
            limit: settings.limit,
        })
    }

    /// Sends spans; returns how many of them the collector has rejected.
    pub(super) async fn export(
        &self,
        spans: collector::ExportTraceServiceRequest,
    ) -> Result<u64, ExportError> {
        let mut request = Request::new(spans);
        *request.metadata_mut() = self.headers.clone();
        let mut client = self.client.clone();
        let answer = tokio::time::timeout(self.limit, client.export(request)).await;
        let answer = answer.map_err(|_| ExportError::Deadline(self.limit))?;
        let answer = answer.map_err(|status| {
            let text = report(&status);
            let text = text[..text.floor_char_boundary(TEXT_MAX)].to_owned();
            ExportError::Refused {
                code: status.code(),
                text,
            }
        })?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        Ok(u64::try_from(partial.rejected_spans).unwrap_or_default())
    }
}

/// The collector as these settings describe it; nothing is connected yet. Blocks on the file system.
pub(super) fn endpoint(settings: &TraceSettings) -> Result<Endpoint, TraceSettingsError> {
    let refuse = |error: tonic::transport::Error| TraceSettingsError::Connection(report(&error));
    let endpoint = Channel::builder(settings.endpoint.clone()).connect_timeout(CONNECT);
    if !settings.is_encrypted() {
        return Ok(endpoint);
    }
    let tls = match &settings.authorities {
        Some(file) => ClientTlsConfig::new().ca_certificate(read_authorities(file)?),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    endpoint.tls_config(tls).map_err(refuse)
}

fn read_authorities(file: &Path) -> Result<Certificate, TraceSettingsError> {
    let read = switchyard_node_files::read(file, AUTHORITIES_MAX).map(Certificate::from_pem);
    read.map_err(|error| TraceSettingsError::Authorities {
        file: file.to_owned(),
        why: error.to_string(),
    })
}
