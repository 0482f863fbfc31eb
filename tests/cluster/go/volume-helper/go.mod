module volume-helper

go 1.24.0
