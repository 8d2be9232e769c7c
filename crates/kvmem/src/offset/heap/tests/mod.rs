mod chunked_table;
mod quick;
mod start;
mod worst;
