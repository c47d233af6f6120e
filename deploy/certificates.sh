#!/usr/bin/env bash
# Makes an authority of one's own and a certificate of an edge: deploy/certificates.sh FOLDER NAME_OR_IP [NAME_OR_IP …]
# A second call with the same folder keeps the authority and makes another certificate. Valid for a year.
set -euo pipefail
umask 077
test $# -ge 2 || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
folder=$1; shift
mkdir -p "$folder"
request=$folder/$1.csr
trap 'rm -f "$request"' EXIT

# Says what went wrong, and nothing else.
quietly() {
    local said
    said=$("$@" 2>&1) || { echo "$said" >&2; exit 1; }
}

if [[ ! -e $folder/authority.key ]]; then
    quietly openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj '/CN=covspec authority' \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
        -keyout "$folder/authority.key" -out "$folder/authority.pem"
fi
names=()
for name in "$@"; do
    [[ $name =~ ^(\*\.)?[[:alnum:]._-]+$|^[[:xdigit:]:.]+$ ]] || \
        { echo "neither a host name nor an address: $name" >&2; exit 2; }
    [[ $name =~ ^[0-9.]+$|: ]] && names+=("IP:$name") || names+=("DNS:$name")
done
quietly openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$folder/$1.key" -out "$request"
quietly openssl x509 -req -in "$request" -CA "$folder/authority.pem" -CAkey "$folder/authority.key" -CAcreateserial \
    -days 365 -out "$folder/$1.pem" -extfile <(
        printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$(IFS=,; echo "${names[*]}")")
echo "edge:    --ssl-certfile $folder/$1.pem --ssl-keyfile $folder/$1.key"
echo "devices: --ssl-ca-certs $folder/authority.pem"
