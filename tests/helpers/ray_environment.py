"""Environment variables for every Ray of the tests."""

RAY_ENVIRONMENT = {
    # By default, workers have a low priority, and the tests of the other core slow them down.
    "RAY_worker_niceness": "0",
    # Ray's own processes look at files and processes every few seconds, which tests do not need.
    "LOG_NAME_UPDATE_INTERVAL_S": "5",
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    "METRICS_RECORD_INTERVAL_S": "60",
}
