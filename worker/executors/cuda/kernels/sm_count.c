/* The number of SMs that attention planners believe the device has; 0: what the device says.
 * A library of its own, loaded first and globally, so that all modules bind to this one cell. */
int tandem_sm_count = 0;
