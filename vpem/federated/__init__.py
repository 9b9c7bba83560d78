"""FedEM and VR-FedEM: EM from compressed statistics of some of the workers."""
