//! The backend contract, on a real containerd with real containers.

use switchyard_tests::backend_fixture::BackendFixture;

switchyard_contract::contract_tests!(|| BackendFixture::new());
