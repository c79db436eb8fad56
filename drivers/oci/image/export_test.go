package image

// RegistryError is for tests.
var RegistryError = registryError
