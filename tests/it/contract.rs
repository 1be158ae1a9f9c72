//! The backend contract, on a real containerd with real containers.

use switchyard_tests::world::World;

switchyard_contract::contract_tests!(|| World::new());
